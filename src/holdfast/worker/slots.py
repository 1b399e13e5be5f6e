"""Slots: how many jobs of which queues may run at once in one process, and how many to ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.errors import InvalidOption
from holdfast.store import check_name

DEFAULT_CONCURRENCY: Final = 16
MOST_SLOTS: Final = 10_000
_MOST_DIGITS: Final = 9
"""Of a number that is looked at: longer ones are too large anyway."""


@dataclass(frozen=True)
class Pool:
    """Slots that some queues share; without queues, all that have none of their own."""

    size: int
    queues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= MOST_SLOTS:
            raise InvalidOption(f"The number of slots must be a whole number from 1 to {MOST_SLOTS:,}.")
        for queue in self.queues:
            check_name(queue, "the name of a queue")


@dataclass(frozen=True)
class Slots:
    """The pools of one process. A queue belongs to at most one of them."""

    pools: tuple[Pool, ...]

    def __post_init__(self) -> None:
        named = [queue for pool in self.pools for queue in pool.queues]
        for queue in named:
            if named.count(queue) > 1:
                raise InvalidOption(f"Queue {queue!r} is named twice. Name it once, such as {queue}=4.")

    @property
    def total(self) -> int:
        return sum(pool.size for pool in self.pools)

    @property
    def queues(self) -> tuple[str, ...]:
        """Those that are named; empty if all are served."""
        return () if self.serves_all else tuple(queue for pool in self.pools for queue in pool.queues)

    @property
    def serves_all(self) -> bool:
        return any(not pool.queues for pool in self.pools)

    def __str__(self) -> str:
        return ", ".join(f"{' + '.join(pool.queues) or 'all queues'}: {pool.size}" for pool in self.pools)


def make_slots(
    queues: Mapping[str, int | None] | Sequence[str] | None, concurrency: int = DEFAULT_CONCURRENCY
) -> Slots:
    """Slots from what a user writes: {"high": 4, "low": 1}, ["a", "b"] who share, or nothing for all queues."""
    if not queues:
        return Slots((Pool(concurrency),))
    if isinstance(queues, str):
        raise InvalidOption(f"queues takes a list or a mapping of names, such as [{queues!r}].")
    wanted: Mapping[str, int | None] = queues if isinstance(queues, Mapping) else dict.fromkeys(queues)
    own = [Pool(size, (name,)) for name, size in wanted.items() if size is not None]
    shared = tuple(name for name, size in wanted.items() if size is None)
    return Slots((*own, *([Pool(concurrency, shared)] if shared else [])))


def parse_queues(texts: Iterable[str]) -> dict[str, int | None]:
    """`high=4` and `default`, as the command line has them."""
    parsed: dict[str, int | None] = {}
    for text in texts:
        name, separator, number = text.rpartition("=") if "=" in text else (text, "", "")
        if not name:
            raise InvalidOption(f"--queue {text}: the name of the queue is missing. Write --queue high=4.")
        if separator and not (number.isascii() and number.isdigit()):
            raise InvalidOption(f"--queue {text}: the number of slots is missing. Write --queue {name}=4.")
        size = int(number.lstrip("0")[:_MOST_DIGITS] or 0)
        if separator and not 1 <= size <= MOST_SLOTS:
            raise InvalidOption(f"--queue {text}: a queue has from 1 to {MOST_SLOTS:,} slots. Write --queue {name}=4.")
        if name in parsed:
            raise InvalidOption(f"--queue {name} is given twice. Give it once.")
        parsed[name] = size if separator else None
    return parsed


def share(slots: int, queues: Sequence[str], turn: int) -> dict[str, int]:
    """Split slots evenly between queues that may have work; what is left over goes to others each time."""
    if not queues or slots <= 0:
        return {}
    each, rest = divmod(slots, len(queues))
    first = turn % len(queues)
    ordered = [*queues[first:], *queues[:first]]
    shares = {queue: each + (number < rest) for number, queue in enumerate(ordered)}
    return {queue: number for queue, number in shares.items() if number}
