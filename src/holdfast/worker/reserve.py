"""The reserve: slots that are kept free while a claim is under way, for jobs that must start when they come. Pure.

Jobs under a rate with a short window count from their claim on, so no more of them are claimed than there are free
slots. Where other jobs wait for every slot that becomes free, there would never be one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Reserve:
    """One slot in each pool at first, and more while as many come as there are: up to half of the pool."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._most = [max(1, size // 2) for size in sizes]
        self._next = [1] * len(sizes)
        self.kept = [0] * len(sizes)
        """How many slots of each pool are kept free now."""

    def keep(self, pool: int) -> None:
        self.kept[pool] = self._next[pool]

    def let_go(self, came: Mapping[int, int]) -> list[int]:
        """The claim is over, and brought so many to each pool that had to start. Which pools have slots back."""
        pools = [pool for pool, kept in enumerate(self.kept) if kept]
        for pool in pools:
            kept, number = self.kept[pool], came.get(pool, 0)
            self._next[pool] = min(2 * kept, self._most[pool]) if number >= kept else max(1, number)
            self.kept[pool] = 0
        return pools
