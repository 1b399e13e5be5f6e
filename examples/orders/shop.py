"""A shop that takes orders as fast as it can: each order and its jobs are one transaction.

    python examples/orders/shop.py shop.db

It goes on until somebody kills it. Run `make demo` to see that done.
"""

import sqlite3
import sys
from itertools import count

from holdfast import Holdfast

JOBS_PER_ORDER = 3


def open_shop(path: str) -> tuple[Holdfast, sqlite3.Connection]:
    hf = Holdfast(f"sqlite:///{path}")
    db = sqlite3.connect(path, timeout=30)
    db.execute("pragma journal_mode = wal")
    db.execute("create table if not exists orders (id integer primary key)")
    return hf, db


def main(path: str) -> None:
    hf, db = open_shop(path)

    @hf.task(queue="mail", idempotency_key="receipt:{order_id}")
    async def send_receipt(order_id: int) -> None: ...

    @hf.task(queue="billing", priority="high")
    async def write_invoice(order_id: int) -> None: ...

    @hf.task(queue="search")
    async def update_index(order_id: int) -> None: ...

    for _ in count():
        with db:  # one transaction: the order and its jobs, or neither
            db.execute("begin immediate")
            order = db.execute("insert into orders default values").lastrowid
            hf.enqueue_many([task.call(order) for task in (send_receipt, write_invoice, update_index)], tx=db)
        print(order, flush=True)  # what the customer was told


if __name__ == "__main__":
    main(sys.argv[1])
