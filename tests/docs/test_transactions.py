"""The code of the guide to transactions runs as it stands, on the databases that it is for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from asyncpg import UniqueViolationError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from holdfast import Context, Holdfast
from tests.integration.ledger import Ledger

GUIDE = (Path(__file__).parents[2] / "docs" / "transactions.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "notes"
    text: Mapped[str] = mapped_column(primary_key=True)


async def ask_provider(cents: int, idempotency_key: str) -> str:
    return f"{cents} under {idempotency_key}"


def read(ledger: Ledger, *blocks: str) -> tuple[Holdfast, dict[str, Any]]:
    """An app with the tasks of these blocks, and the tables that they use."""
    for table in ("charges (order_id integer, cents integer)", "days (day text)", "notes (text text primary key)"):
        ledger.run(f"create table {table}")
    hf = Holdfast(ledger.url)
    namespace: dict[str, Any] = {
        "hf": hf,
        "Context": Context,
        "Note": Note,
        "UniqueViolationError": UniqueViolationError,
        "ask_provider": ask_provider,
    }
    exec("\n".join(blocks), namespace)  # noqa: S102
    return hf, namespace


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    if request.param == "sqlite":
        return Ledger(f"sqlite:///{tmp_path / 'jobs.db'}")
    return Ledger(request.getfixturevalue("postgres_database"))


async def test_a_charge_is_written_with_its_receipt(ledger: Ledger) -> None:
    charging, closing, _, _ = BLOCKS
    hf, namespace = read(ledger, charging, closing)
    async with hf, hf.worker(concurrency=2):
        job = await namespace["charge"].aenqueue(7, 499)
        assert await job.aresult(timeout="20s") == f"499 under {job.id}"
        assert await (await namespace["close_day"].aenqueue("monday")).aresult(timeout="20s") == 1
    assert ledger.ask("select * from charges") == [(7, 499)]
    assert ledger.ask("select * from days") == [("monday",)]


async def test_parts_and_sessions_on_postgres(postgres_database: str) -> None:
    _, _, parts, sessions = BLOCKS
    ledger = Ledger(postgres_database)
    hf, namespace = read(ledger, parts, sessions)
    async with hf, hf.worker(concurrency=2):
        for task, text in (("note", "one"), ("note", "one"), ("keep", "two")):
            await (await namespace[task].aenqueue(text)).aresult(timeout="20s")
    assert sorted(ledger.ask("select * from notes")) == [("one",), ("two",)]
