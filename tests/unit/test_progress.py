"""What a task may say of its progress."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, InvalidOption


@pytest.mark.parametrize("done", [float("nan"), float("inf"), -float("inf"), 10**400, "3", None])
def test_what_is_no_number_is_refused(done: Any) -> None:
    with pytest.raises(InvalidOption, match="takes two numbers"):
        Context("task").progress(done)


@pytest.mark.parametrize("total", [float("nan"), 10**400, "3"])
def test_a_total_that_is_no_number_is_refused(total: Any) -> None:
    with pytest.raises(InvalidOption, match="takes two numbers"):
        Context("task").progress(1, total)


def test_a_note_is_a_text() -> None:
    note: Any = 17
    with pytest.raises(InvalidOption, match="and a text"):
        Context("task").progress(1, 2, note)


def test_a_task_that_is_called_directly_may_report() -> None:
    Context("task").progress(1, 2, "note")
    Context("task").progress(0.5)
