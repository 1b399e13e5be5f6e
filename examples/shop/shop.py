"""A small web shop. An order is answered in milliseconds; the mail, the analytics, the warehouse, the invoice and the
search index are five jobs behind it.

    uvicorn shop:web            # takes orders
    holdfast worker shop:hf     # does what they ask for

`make demo` runs both, in front of providers that fail, and kills a worker in the middle.
"""

import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import httpx2 as httpx
from fastapi import FastAPI

from holdfast import Context, Holdfast, RateLimited, Retry, State
from holdfast.contrib.fastapi import answer_errors, lifespan

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")
PROVIDERS = os.environ.get("SHOP_PROVIDERS", "http://127.0.0.1:8001")
# Two orders that no programmer has thought of.
POISON_ORDER = int(os.environ.get("SHOP_POISON_ORDER", "0"))
BLOCKING_ORDER = int(os.environ.get("SHOP_BLOCKING_ORDER", "0"))

hf = Holdfast(f"sqlite:///{DATABASE}")

# ── what each worker process has ─────────────────────────────────────────────────────────────────────────────────────


@hf.on_startup
async def connect(state: State) -> None:
    state.http = httpx.AsyncClient(base_url=PROVIDERS, timeout=5)


@hf.on_shutdown
async def disconnect(state: State) -> None:
    await state.http.aclose()


# ── the jobs of an order ─────────────────────────────────────────────────────────────────────────────────────────────


@hf.task(bind=True, queue="mail", retry=Retry(12, base="50ms", cap="1s"), idempotency_key="mail:{order_id}")
async def send_confirmation(ctx: Context, order_id: int) -> None:
    # The provider fails now and then, also after it has sent the mail: the key keeps it from sending it twice.
    headers = {"Idempotency-Key": ctx.idempotency_key}
    answer = await ctx.state.http.post("/mails", json={"order_id": order_id}, headers=headers)
    answer.raise_for_status()


@hf.task(bind=True, queue="analytics", priority="low")
async def count_in_analytics(ctx: Context, order_id: int) -> None:
    headers = {"Idempotency-Key": ctx.idempotency_key}
    answer = await ctx.state.http.post("/events", json={"order_id": order_id}, headers=headers)
    if answer.status_code == 429:
        raise RateLimited(answer.headers.get("Retry-After"))
    answer.raise_for_status()


@hf.task(bind=True, queue="warehouse", priority="high", delivery="transactional")
async def ship(ctx: Context, order_id: int) -> None:
    # The row and the end of the job are one transaction: both are there, once, or neither is.
    await ctx.tx.aexecute("insert into shipments (order_id) values ($1)", order_id)


@hf.task(bind=True, queue="billing", delivery="transactional", soft_timeout="3s", timeout="4s")
async def write_invoice(ctx: Context, order_id: int) -> None:
    if order_id == BLOCKING_ORDER and ctx.attempt == 1:
        time.sleep(3600)  # noqa: ASYNC251 - a mistake: nothing else can run on this event loop any more
    await ctx.tx.aexecute("insert into invoices (order_id) values ($1)", order_id)


@hf.task(queue="search")
def update_index(order_id: int) -> None:
    if order_id == POISON_ORDER:
        os.kill(os.getpid(), signal.SIGSEGV)  # a library that crashes on this one order
    time.sleep(0.005)


JOBS = (send_confirmation, count_in_analytics, ship, write_invoice, update_index)

# ── the shop ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def tables(_: FastAPI) -> AsyncIterator[None]:
    with closing(open_database()) as db, db:
        for table in ("orders", "shipments", "invoices"):
            db.execute(f"create table if not exists {table} (id integer primary key, order_id integer)")
    yield


web = FastAPI(lifespan=lifespan(hf, worker=False, inside=tables))
answer_errors(web)


@web.post("/orders", status_code=202)
def place_order() -> dict[str, int]:
    with closing(open_database()) as db, db:
        # One transaction: the order and its five jobs, or neither.
        db.execute("begin immediate")
        order = db.execute("insert into orders default values").lastrowid
        assert order is not None
        hf.enqueue_many([job.call(order) for job in JOBS], tx=db)
    return {"order": order}


def open_database() -> sqlite3.Connection:
    return sqlite3.connect(DATABASE, timeout=30)
