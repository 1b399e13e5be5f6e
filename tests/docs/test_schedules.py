"""The code of the guide to schedules runs as it stands, and its table of changing clocks is true."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.timing import Cron, find_zone

GUIDE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
DECLARED, FURTHER, STEERED, TESTED = range(4)


@pytest.fixture
def namespace() -> dict[str, Any]:
    hf = Holdfast("memory://")
    namespace: dict[str, Any] = {"hf": hf}
    exec(BLOCKS[DECLARED] + BLOCKS[FURTHER], namespace)  # noqa: S102
    return namespace


def test_every_block_is_known() -> None:
    assert len(BLOCKS) == 4


def test_schedules_are_declared_and_steered(namespace: dict[str, Any]) -> None:
    hf: Holdfast = namespace["hf"]
    assert sorted(hf.engine.plans()) == ["digest", "greet", "poll_bank", "report acme", "report all"]
    hf.publish_tasks()
    exec(BLOCKS[STEERED], namespace)  # noqa: S102
    records = {record.name: record for record in hf.schedules.all()}
    assert "report initech" in records
    assert records["digest"].plan == hf.engine.plans()["digest"]
    assert hf.jobs.count(task="digest") == 1


def test_the_test_of_the_guide_passes(namespace: dict[str, Any]) -> None:
    exec(BLOCKS[TESTED], namespace)  # noqa: S102
    namespace["test_the_digest_is_sent"]()


def ticks_on(expression: str, day: datetime) -> list[str]:
    """What the clock shows in Paris at the ticks of a day, from 01:15 to 04:00."""
    zone = find_zone("Europe/Paris")
    cron = Cron(expression, zone)
    end = day.replace(hour=4, tzinfo=zone).astimezone(UTC)
    tick = cron.next_after(day.replace(hour=1, minute=15, tzinfo=zone))
    shown: list[str] = []
    while tick is not None and tick <= end:
        shown.append(f"{tick.astimezone(zone):%H:%M}")
        tick = cron.next_after(tick)
    return shown


SPRING, AUTUMN = datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "spring", "autumn"),
    [
        ("30 2 * * *", ["03:00"], ["02:30"]),
        ("0 3 * * *", ["03:00"], ["03:00"]),
        ("*/30 2 * * *", [], ["02:00", "02:30", "02:00", "02:30"]),
    ],
)
def test_the_table_of_changing_clocks_is_true(expression: str, spring: list[str], autumn: list[str]) -> None:
    assert f"| `{expression}` |" in GUIDE
    assert ticks_on(expression, SPRING) == spring
    assert ticks_on(expression, AUTUMN) == autumn


def test_a_rhythm_goes_on_while_clocks_change() -> None:
    assert ticks_on("*/30 * * * *", SPRING) == ["01:30", "03:00", "03:30", "04:00"]
    assert ticks_on("*/30 * * * *", AUTUMN)[:6] == ["01:30", "02:00", "02:30", "02:00", "02:30", "03:00"]


def test_what_the_guide_says_of_spans_is_so() -> None:
    from holdfast import schedule

    assert timedelta(minutes=1) == schedule.LATE_AFTER
    assert timedelta(minutes=5) == schedule.ORPHANED_AFTER
    assert timedelta(minutes=1) == schedule.DECLARED_EVERY
    assert schedule.MOST_CAUGHT_UP == 1_000
