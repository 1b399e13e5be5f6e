"""The code of the guide to limits runs as it stands, and what it says of figures is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, InvalidPayload
from holdfast.gates import GateKind

GUIDE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
DECLARED, SHARED, TOGETHER, BLOCKING, TESTED = range(5)


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setenv("HOLDFAST_URL", "memory://")
    namespace: dict[str, Any] = {}
    exec("".join(BLOCKS[number] for number in (DECLARED, SHARED, TOGETHER, BLOCKING)), namespace)  # noqa: S102
    yield namespace
    namespace["hf"].close()


def kinds_of(hf: Holdfast, task: str) -> dict[GateKind, str | None]:
    return {each.kind: each.key for each in hf.engine.tasks[task].definition().limits}


def test_every_block_is_known() -> None:
    assert len(BLOCKS) == 5


def test_limits_are_declared(namespace: dict[str, Any]) -> None:
    hf: Holdfast = namespace["hf"]
    assert kinds_of(hf, "call_partner") == {GateKind.RATE: "{tenant}"}
    assert kinds_of(hf, "export") == {GateKind.LIMIT: "{tenant}"}
    assert kinds_of(hf, "ship") == {GateKind.ORDER: "{order_id}"}
    assert kinds_of(hf, "index") == {GateKind.FAIR: "{tenant}"}
    assert len(kinds_of(hf, "charge")) == 4


def test_tasks_with_one_name_share_a_limit(namespace: dict[str, Any]) -> None:
    with namespace["hf"].testing() as t:
        for number in range(3):
            namespace["fetch"].enqueue("example.org", f"/{number}")
            namespace["check_robots"].enqueue("example.org")
        assert t.run_all() == 6
    gates = {namespace["hf"].engine.tasks[name].definition().limits[0].name for name in ("fetch", "check_robots")}
    assert gates == {"crawler"}


def test_who_sends_by_name_must_give_what_the_key_needs(namespace: dict[str, Any]) -> None:
    hf: Holdfast = namespace["hf"]
    hf.publish_tasks()
    hf.send("export", {"tenant": "acme"})
    with pytest.raises(InvalidPayload):
        hf.send("export", {})


def test_the_test_of_the_guide_passes(namespace: dict[str, Any]) -> None:
    exec(BLOCKS[TESTED], namespace)  # noqa: S102
    namespace["test_a_tenant_is_throttled"]()


def test_what_the_guide_says_of_dead_jobs_is_so(namespace: dict[str, Any]) -> None:
    hf: Holdfast = namespace["hf"]
    assert [each.is_blocking for each in hf.engine.tasks["post"].definition().limits] == [True]
    assert [each.is_blocking for each in hf.engine.tasks["ship"].definition().limits] == [False]


def test_what_the_guide_says_of_figures_is_so() -> None:
    from holdfast import gates

    assert "a 64th of the window" in GUIDE
    assert gates.SLACK == 64
