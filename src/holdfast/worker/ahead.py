"""What a pool has in hand and has no slot for yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from holdfast.job import ClaimedJob
from holdfast.worker.runs import Run


class Ahead:
    """Jobs that could start if there were a slot: those that were fetched, and followers, which have waited for
    another one of their order.

    They take turns. Of followers there are always more as long as a train lasts, and those that were fetched would
    otherwise wait for the end of all trains.
    """

    def __init__(self) -> None:
        self._fetched: deque[Run] = deque()
        self._followers: deque[Run] = deque()
        self._is_followers_turn = False

    def __bool__(self) -> bool:
        return bool(self._fetched or self._followers)

    def __iter__(self) -> Iterator[Run]:
        yield from self._fetched
        yield from self._followers

    def add(self, run: Run, now: float) -> None:
        run.fetched_at = now
        (self._followers if run.is_follower else self._fetched).append(run)

    @property
    def has_lined(self) -> bool:
        """Whether one that may be next stands in a line."""
        return bool(self._followers) or (bool(self._fetched) and self._fetched[0].job.is_lined)

    def take(self, is_wanted: Callable[[ClaimedJob], bool]) -> list[Run]:
        """Those that are wanted. They wait no more."""
        found = [run for run in self if is_wanted(run.job)]
        if found:
            self._fetched = deque(run for run in self._fetched if not is_wanted(run.job))
            self._followers = deque(run for run in self._followers if not is_wanted(run.job))
        return found

    def next(self) -> Run:
        """The one that starts next. It waits no more."""
        is_follower = not self._fetched or (self._is_followers_turn and bool(self._followers))
        self._is_followers_turn = not is_follower
        return (self._followers if is_follower else self._fetched).popleft()

    def added_before(self, time: float, *, is_lined: bool = False) -> list[Run]:
        """Who has waited for a slot since before this; `is_lined`: unless a plain one was before. They wait no more."""
        found: list[Run] = []
        for waiting in (self._fetched, self._followers):
            while waiting and waiting[0].fetched_at < time and (waiting[0].job.is_lined or not is_lined):
                found.append(waiting.popleft())
        return found
