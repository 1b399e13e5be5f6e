from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from holdfast.line import Line

USUAL = 0.004


@pytest.fixture(autouse=True)
def usual_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    assert sys.getswitchinterval() == pytest.approx(USUAL)
    sys.setswitchinterval(before)


def is_hurried() -> bool:
    return sys.getswitchinterval() < 0.001


def test_items_come_in_the_order_they_were_put() -> None:
    line: Line[int] = Line()
    for number in range(5):
        line.put(number)
    assert [line.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert line.empty()
    line.rest()


def test_threads_are_switched_quickly_from_the_first_item_until_the_last_is_served() -> None:
    line: Line[str] = Line()
    assert not is_hurried()
    line.put("one")
    line.put("two")
    assert is_hurried()
    line.get()
    line.get()
    assert is_hurried()  # the second one is still being served
    line.rest()
    assert not is_hurried()


def test_a_line_that_somebody_has_just_joined_is_not_at_rest() -> None:
    line: Line[str] = Line()
    line.put("one")
    line.rest()
    assert is_hurried()
    line.get()
    line.rest()


def test_the_last_of_several_lines_ends_the_hurry() -> None:
    first: Line[str] = Line()
    second: Line[str] = Line()
    first.put("one")
    second.put("two")
    first.get()
    first.rest()
    assert is_hurried()
    second.get()
    second.rest()
    assert not is_hurried()


def test_a_thread_that_waits_for_the_next_item_is_at_rest() -> None:
    line: Line[str | None] = Line()
    served: list[str] = []
    has_served = threading.Event()

    def serve() -> None:
        while (item := line.get()) is not None:
            served.append(item)
            has_served.set()

    thread = threading.Thread(target=serve)
    thread.start()
    line.put("one")
    assert has_served.wait(10)
    line.put(None)
    thread.join()
    assert served == ["one"]
    line.rest()


def test_an_interval_that_is_shorter_already_is_left_alone() -> None:
    sys.setswitchinterval(0.00002)
    line: Line[str] = Line()
    line.put("one")
    assert sys.getswitchinterval() == pytest.approx(0.00002)
    line.get()
    line.rest()
    sys.setswitchinterval(USUAL)


def test_a_forked_child_is_in_no_hurry() -> None:
    line: Line[str] = Line()
    line.put("one")
    child = os.fork()
    if child == 0:
        os._exit(1 if is_hurried() else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert is_hurried()
    line.get()
    line.rest()
