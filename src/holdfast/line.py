"""A line before a thread: what others hand over to it, and its right to run.

Python lets a busy thread run on for 5 ms while another one waits for the interpreter. Worse, a thread that
lets go of it for a moment more often than that, as an event loop does when it looks at its sockets, can
keep a waiting one out for seconds: each time, the waiter is woken, comes too late, and counts anew. So
while something stands in line, threads are switched more often; as soon as the line is empty, no more.
"""

from __future__ import annotations

import sys
from typing import Generic, TypeVar

from holdfast import forks, native

Item = TypeVar("Item")

_HURRIED = 0.0001


class Line(Generic[Item]):
    """A queue from any threads to one that serves it."""

    def __init__(self) -> None:
        self._lock = native.make_lock()
        self._channel: native.Channel[Item] = native.Channel()
        self._is_busy = False

    def put(self, item: Item) -> None:
        with self._lock:
            if not self._is_busy:
                self._is_busy = True
                _hurry.begin()
            self._channel.put(item)

    def get(self) -> Item:
        """Wait for the next one. Whoever asks has finished with those before."""
        if self._channel.empty():
            self.rest()
        return self._channel.get()

    def rest(self) -> None:
        """Nothing is under way, unless somebody has just come."""
        with self._lock:
            if self._is_busy and self._channel.empty():
                self._is_busy = False
                _hurry.end()

    def empty(self) -> bool:
        return self._channel.empty()


class Hurry:
    """Counts the lines that are busy. While there are any, threads take turns quickly."""

    def __init__(self) -> None:
        self._lock = native.make_lock()
        self._busy = 0
        self._usual = 0.0
        forks.watch(self)

    def begin(self) -> None:
        with self._lock:
            if self._busy == 0:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, _HURRIED))
            self._busy += 1

    def end(self) -> None:
        with self._lock:
            self._busy -= 1
            if self._busy == 0:
                sys.setswitchinterval(self._usual)

    def before_fork(self) -> None:
        return

    def after_fork(self, *, in_child: bool) -> None:
        """In the child, nobody serves the parent's lines, and whoever held the lock is gone."""
        if in_child:
            self._lock = native.make_lock()
            if self._busy:
                self._busy = 0
                sys.setswitchinterval(self._usual)


_hurry = Hurry()
