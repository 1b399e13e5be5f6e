"""Every moment at which a verb can be harmed: between any two of its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from types import TracebackType
from typing import Self

from holdfast.stores.postgres import PostgresStore
from tests.crash.rounds import IS_THOROUGH
from tests.postgres.proxy import Harm, Plan, Proxy


class Moment:
    """Within its `with` block, harm is done to one request."""

    def __init__(self, proxy: Proxy, plan: Plan) -> None:
        self._proxy = proxy
        self._plan = plan

    @property
    def has_come(self) -> bool:
        return self._plan.done > 0

    def __enter__(self) -> Self:
        self._proxy.plans.append(self._plan)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._proxy.plans.remove(self._plan)


async def moments(proxy: Proxy, store: PostgresStore, harm: Harm, *, few: int = 1) -> AsyncIterator[Moment]:
    """First a round without harm; then harm to the first request, to the second, and so on, until there is none.

    If asked to be thorough, also on new connections, which make more requests; otherwise only to every `few`-th.
    """
    yield Moment(proxy, Plan(harm, times=0))
    for is_new in (False, True) if IS_THOROUGH else (False,):
        for number in count(0, 1 if IS_THOROUGH else few):
            for office in store._offices._of_loops.values():
                await office.messenger.drain()
                if is_new:
                    office.pool.drop_free()
            moment = Moment(proxy, Plan(harm, skip=number))
            yield moment
            if not moment.has_come:
                assert number, "the store has made no request at all"
                break
