"""The code of the guide to explanations runs as it stands, and what it shows is what is printed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, JobState, Limit, Rate, ReasonKind
from holdfast.cli import main
from holdfast.store import NewWorker

GUIDE = (Path(__file__).parents[2] / "docs" / "explain.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
ASKED, READ, SET = range(3)


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """One of three jobs of a tenant runs, and the others wait."""
    hf = Holdfast(f"sqlite:///{tmp_path}/jobs.db")

    @hf.task(limit=Limit(1, "{tenant}"), rate=Rate(100, "1m"))
    def charge(tenant: str) -> None: ...

    hf.publish_tasks()
    _, second, _ = hf.enqueue_many(charge.call("acme") for _ in range(3))
    worker, store = uuid4(), hf.engine.store
    hf.engine.wait(store.register(NewWorker(worker, "box", tasks=("charge",))), "")
    for _ in range(2):
        hf.engine.wait(store.claim(worker, uuid4(), {"default": 5}), "")
    yield {"hf": hf, "job": second}
    hf.close()


def test_every_block_is_known() -> None:
    assert len(BLOCKS) == 3


def test_the_sentence_is_what_is_printed(namespace: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[ASKED], namespace)  # noqa: S102
    assert f"    {capsys.readouterr().out}" in GUIDE


def test_a_program_can_read_the_reasons(namespace: dict[str, Any]) -> None:
    exec(BLOCKS[READ], namespace)  # noqa: S102
    explanation = namespace["explanation"]
    assert explanation.state is JobState.PENDING
    assert explanation.kinds == (ReasonKind.LIMIT, ReasonKind.POSITION)
    assert set(explanation.reasons[0].details) == {"name", "key", "used", "most"}


def test_limits_are_set_as_the_guide_says(namespace: dict[str, Any]) -> None:
    exec(BLOCKS[SET], namespace)  # noqa: S102
    limit, rate = namespace["hf"].limits.list("charge")
    assert (limit.most, limit.override, rate.most, rate.declared) == (1, None, 500, 100)


def test_the_command_prints_what_the_guide_shows(
    namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", namespace["hf"].url)
    for command in ("limits ls", "limits set charge 10 --key acme"):
        monkeypatch.setattr(sys, "argv", ["holdfast", *command.split()])
        with pytest.raises(SystemExit):
            main()
        printed = "".join(f"    {line}\n" for line in capsys.readouterr().out.splitlines())
        assert f"    $ holdfast {command}\n{printed}" in GUIDE


def test_every_kind_of_reason_is_in_the_table_in_its_order() -> None:
    first_column = re.findall(r"^\| (`.*?`) \|", GUIDE, re.MULTILINE)
    listed = [kind for cell in first_column for kind in re.findall(r"`(\w+)`", cell)]
    assert listed == list(ReasonKind)
