"""The code of the guide to circuit breakers runs as it stands."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import BreakerOpen, BreakerState, Holdfast, breaker, panel
from holdfast.worker import turnstile

GUIDE = (Path(__file__).parents[2] / "docs" / "breakers.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
DECLARED, BLOCK, HANDLED, CHOSEN, STEERED, TESTED = range(6)


class Provider:
    """What the guide's tasks call."""

    is_down = False

    async def charge(self, order_id: int) -> str:
        if self.is_down:
            raise ConnectionError
        return f"receipt-{order_id}"

    async def capture(self, order: object) -> None:
        await self.charge(0)

    def export(self, order_id: int) -> None:
        if self.is_down:
            raise ConnectionError


@pytest.fixture
def namespace() -> dict[str, Any]:
    async def load(order_id: int) -> int:
        return order_id

    namespace: dict[str, Any] = {
        "hf": Holdfast("memory://"),
        "provider": Provider(),
        "load": load,
        "BreakerOpen": BreakerOpen,
    }
    for block in (DECLARED, BLOCK, HANDLED, CHOSEN):
        exec(BLOCKS[block], namespace)  # noqa: S102
    return namespace


def test_every_block_is_known() -> None:
    assert len(BLOCKS) == 6


def test_the_test_of_the_guide_passes(namespace: dict[str, Any]) -> None:
    exec(BLOCKS[TESTED], namespace)  # noqa: S102
    namespace["test_an_outage_is_waited_for"]()


def test_blocks_wait_in_tasks_as_the_guide_says(namespace: dict[str, Any]) -> None:
    hf: Holdfast = namespace["hf"]
    with hf.testing() as t:
        hf.breakers.open("stripe")
        jobs = [namespace[name].enqueue(1) for name in ("confirm", "export")]
        t.run_all()
        assert [(job.record().attempt, job.record().waits) for job in jobs] == [(0, 1), (0, 1)]
        t.advance("60s")
        t.run_all()
        t.advance("60s")
        t.run_all()
        assert [job.result() for job in jobs] == [None, None]


def test_a_handler_answers_now_or_later(namespace: dict[str, Any]) -> None:
    hf: Holdfast = namespace["hf"]
    assert asyncio.run(namespace["pay"](7)) == {"receipt": "receipt-7"}
    hf.breakers.open("stripe")
    answer = asyncio.run(namespace["pay"](7))
    assert 0 < answer["again_in"] <= 75
    assert hf.jobs.count(task="charge") == 1


def test_breakers_are_shown_and_steered(namespace: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    hf: Holdfast = namespace["hf"]
    hf.publish_tasks()
    exec(BLOCKS[STEERED], namespace)  # noqa: S102
    assert capsys.readouterr().out == "bank closed 0 None None\nstripe closed 0 None None\n"
    assert {record.state for record in hf.breakers.list()} == {BreakerState.CLOSED}


def test_what_the_guide_says_of_spans_is_so() -> None:
    assert (breaker.BreakerPolicy().failures, breaker.BreakerPolicy().reset.total_seconds()) == (5, 60)
    assert breaker.LEAST_LEASE.total_seconds() == 10
    assert panel.FRESH_FOR == turnstile._POLL_EVERY == 3
