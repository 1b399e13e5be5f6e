from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.context import SoftTimeout
from holdfast.errors import InvalidOption
from holdfast.outcome import BreakerOpen, Cancel, GiveUp, PoolFull, RateLimited, Signal, Snooze, TryAgain

SIGNALS = [
    GiveUp("nothing to charge"),
    Cancel("not wanted"),
    BreakerOpen("stripe", "1m30s"),
    Snooze("30s"),
    Snooze(30, "the file is not there yet"),
    TryAgain(),
    TryAgain("30s", "busy"),
    RateLimited(),
    RateLimited("30"),
    RateLimited(datetime(2030, 1, 1, tzinfo=UTC), "quota"),
    PoolFull(),
    SoftTimeout(),
]


@pytest.mark.parametrize("signal", SIGNALS, ids=repr)
def test_a_signal_survives_the_way_out_of_a_process(signal: BaseException) -> None:
    again = pickle.loads(pickle.dumps(signal))
    assert (type(again), str(again), vars(again)) == (type(signal), str(signal), vars(signal))


@pytest.mark.parametrize("kind", [GiveUp, Cancel, PoolFull, TryAgain, RateLimited])
def test_a_signal_without_words_still_says_something_to_whoever_reads_the_job(kind: type[Signal]) -> None:
    assert str(kind())


@pytest.mark.parametrize("delay", [30, 30.0, "30s", timedelta(seconds=30)])
def test_a_snooze_says_its_delay_the_same_way_however_it_was_given(delay: Any) -> None:
    assert str(Snooze(delay)) == "not yet, again in 30s"


@pytest.mark.parametrize("make", [Snooze, TryAgain])
def test_a_wrong_delay_names_the_signal(make: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"^{make.__name__}\(delay\)='soon' is not a span"):
        make("soon")


def test_a_careless_except_exception_does_not_eat_a_soft_timeout() -> None:
    assert issubclass(SoftTimeout, asyncio.CancelledError)
    assert not issubclass(SoftTimeout, Exception)
