"""A breaker as the code has it: `stripe = hf.breaker("stripe")`, around tasks and around blocks."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from holdfast.breaker import BreakerPolicy, Pass, Permit, Wait
from holdfast.context import SoftTimeout
from holdfast.errors import InvalidOption
from holdfast.outcome import BreakerOpen, Verdict

Result = TypeVar("Result")

_FAILURES: Final = (Verdict.TRANSIENT, Verdict.AGAIN)


class Keeper(Protocol):
    """Who knows how breakers stand, for code that wants to pass one."""

    def is_around(self, breaker: Breaker) -> bool:
        """Whether the task in which this code runs was let through it already."""
        ...

    def look(self, breaker: Breaker) -> Pass | Wait | None:
        """Whether to pass, if that is known without asking."""
        ...

    async def enter(self, breaker: Breaker) -> Pass | Wait: ...

    def leave(self, breaker: Breaker, permit: Permit | None, error: BaseException | None) -> bool:
        """Take note of what came of it. Whether the caller must pass that on."""
        ...

    async def flush(self) -> None:
        """Pass on what was noted. Never raises."""
        ...

    def wait(self, coroutine: Coroutine[Any, Any, Result]) -> Result: ...

    def refuse_on_a_loop(self) -> None: ...


class Breaker:
    """Leaves alone what keeps failing: `@hf.task(breaker=stripe)`, `async with stripe:`, and `with stripe:` in threads.

    All processes that use the database share how it stands. Inside of a block, and inside of a task that has the
    breaker, another block of the same one changes nothing.
    """

    def __init__(
        self,
        name: str,
        policy: BreakerPolicy,
        on: Sequence[type[Exception]],
        ignore: Sequence[type[Exception]],
        keeper: Keeper,
    ) -> None:
        self.name = name
        self.policy = policy
        self._on = _exceptions(on, "on")
        self._ignore = _exceptions(ignore, "ignore")
        self._keeper = keeper

    def __repr__(self) -> str:
        return f"<Breaker {self.name}>"

    # ── what counts ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def counts_timeouts(self) -> bool:
        return not self._on or any(issubclass(TimeoutError, kind) for kind in self._on)

    def counts(self, error: BaseException, verdict: Verdict) -> bool:
        """Whether an exception, which was judged so, is a failure of what is behind the breaker."""
        found = [each for each in causes(error) if not isinstance(each, self._ignore)]
        if any(isinstance(each, SoftTimeout) for each in found):
            return self.counts_timeouts
        if self._on:
            return any(isinstance(each, self._on) for each in found)
        return verdict in _FAILURES and any(isinstance(each, Exception) for each in found)

    # ── around a block ───────────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Pass, or raise BreakerOpen."""
        if not self._stay_inside():
            self._stay(self._keeper.look(self) or await self._keeper.enter(self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leave(error):
            await self._keeper.flush()

    def __enter__(self) -> Self:
        """Pass, or raise BreakerOpen. For code that is not on an event loop."""
        self._keeper.refuse_on_a_loop()
        if not self._stay_inside():
            self._stay(self._keeper.look(self) or self._keeper.wait(self._keeper.enter(self)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leave(error):
            self._keeper.wait(self._keeper.flush())

    def _stay_inside(self) -> bool:
        """Whether somebody around this code was let through already: then it need not ask, nor tell."""
        stays = _stays.get()
        is_inside = self._keeper.is_around(self) or any(stay.breaker is self and not stay.is_over for stay in stays)
        if is_inside:
            _stays.set((*stays, Stay(self, None, is_inner=True)))
        return is_inside

    def _stay(self, answer: Pass | Wait) -> None:
        if isinstance(answer, Wait):
            raise BreakerOpen(self.name, answer.delay)
        _stays.set((*_stays.get(), Stay(self, answer.permit)))

    def _leave(self, error: BaseException | None) -> bool:
        """Take note of how the block was left. Whether that is still to be passed on."""
        stays = _stays.get()
        stay = next((stay for stay in reversed(stays) if stay.breaker is self), None)
        if stay is None:
            # It was entered elsewhere, as that of a generator may be: the permit is lost, and its lease will end.
            return self._keeper.leave(self, None, error)
        stay.is_over = True
        _stays.set(tuple(other for other in stays if other is not stay))
        return not stay.is_inner and self._keeper.leave(self, stay.permit, error)


class Stay:
    """Somebody's time inside of a breaker's block. Whatever he starts there has a part in it until he leaves."""

    __slots__ = ("breaker", "is_inner", "is_over", "permit")

    def __init__(self, breaker: Breaker, permit: Permit | None, *, is_inner: bool = False) -> None:
        self.breaker = breaker
        self.permit = permit
        self.is_inner = is_inner
        self.is_over = False


_stays: ContextVar[tuple[Stay, ...]] = ContextVar("holdfast_breakers", default=())


def causes(error: BaseException) -> Iterator[BaseException]:
    """Itself, or all that is in a group."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from causes(each)
    else:
        yield error


def _exceptions(given: Sequence[type[Exception]], name: str) -> tuple[type[Exception], ...]:
    if not isinstance(given, Sequence) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in given
    ):
        raise InvalidOption(f"breaker({name}) takes a list of exception classes, such as [ConnectionError].")
    return tuple(given)
