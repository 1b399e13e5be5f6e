from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.context import SoftTimeout
from holdfast.errors import InvalidOption, InvalidPayload, PayloadTooLarge
from holdfast.outcome import BreakerOpen, Cancel, GiveUp, PoolFull, RateLimited, Snooze, TryAgain, Verdict
from holdfast.retry import MOST_ATTEMPTS, POOL_DELAY, Retry, backoff, classify
from holdfast.span import LONGEST

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)

chances = st.floats(0, 1)
attempts = st.integers(1, MOST_ATTEMPTS)
spans = st.timedeltas(min_value=timedelta(0), max_value=LONGEST)


@st.composite
def policies(draw: st.DrawFn, jitter: bool | None = None) -> Retry:
    base, cap = sorted([draw(spans), draw(spans)])
    return Retry(draw(attempts), base=base, cap=cap, jitter=draw(st.booleans()) if jitter is None else jitter)


def verdict_on(error: BaseException, policy: Retry | None = None) -> Verdict:
    return classify(error, policy or Retry(), NOW)[0]


def raised_by_a_pool(name: str) -> type[Exception]:
    module, _, qualname = name.rpartition(".")
    return type(qualname, (Exception,), {"__module__": module})


# ── the policy ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_defaults_are_five_attempts_with_a_cap_and_jitter() -> None:
    policy = Retry()
    assert (policy.attempts, policy.base, policy.cap, policy.jitter) == (5, SECOND, 600 * SECOND, True)


def test_spans_and_lists_are_read_on_construction() -> None:
    policy = Retry(8, base="2s", cap=600, on=[ConnectionError], never_on=[KeyError])
    assert (policy.base, policy.cap) == (2 * SECOND, 600 * SECOND)
    assert (policy.on, policy.never_on) == ((ConnectionError,), (KeyError,))


def test_equal_policies_are_equal_and_can_be_keys() -> None:
    assert {Retry(3, base="60s"), Retry(3, base="1m")} == {Retry(3, base=60)}


@pytest.mark.parametrize("given_attempts", [0, -1, MOST_ATTEMPTS + 1, True, 2.0, "3", None])
def test_attempts_are_a_whole_number_from_one(given_attempts: Any) -> None:
    with pytest.raises(InvalidOption, match=r"Retry\(attempts\) is the number of runs in all, from 1 to 1000"):
        Retry(given_attempts)


@pytest.mark.parametrize(
    "kinds", [ConnectionError, [BaseException], [KeyboardInterrupt], ["ValueError"], [ValueError()], "abc", 5]
)
@pytest.mark.parametrize("option", ["on", "never_on"])
def test_lists_hold_exception_classes_only(option: str, kinds: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"Retry\({option}\) takes a list of exception classes"):
        Retry(**{option: kinds})


def test_a_base_beyond_the_cap_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"Retry\(base=20m\) is longer than its cap=10m\. Raise the cap\."):
        Retry(base="20m")


@pytest.mark.parametrize("option", ["base", "cap"])
def test_a_wrong_span_is_reported_under_its_own_name(option: str) -> None:
    with pytest.raises(InvalidOption, match=rf"^Retry\({option}\)='soon' is not a span"):
        Retry(**{option: "soon"})  # type: ignore[arg-type]


# ── the backoff ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(policies(), attempts, chances)
def test_the_backoff_never_leaves_its_bounds(policy: Retry, attempt: int, chance: float) -> None:
    assert timedelta(0) <= backoff(policy, attempt, chance) <= policy.cap


@given(policies(jitter=False), attempts, chances)
def test_without_jitter_the_wait_is_the_base_doubled_each_time_up_to_the_cap(
    policy: Retry, attempt: int, chance: float
) -> None:
    exact = min(policy.base // timedelta.resolution * 2 ** (attempt - 1), policy.cap // timedelta.resolution)
    assert abs(backoff(policy, attempt, chance) // timedelta.resolution - exact) <= 1


@given(policies(jitter=True), attempts)
def test_with_jitter_the_wait_is_drawn_between_nothing_and_the_full_backoff(policy: Retry, attempt: int) -> None:
    full = backoff(Retry(base=policy.base, cap=policy.cap, jitter=False), attempt, 0.0)
    assert backoff(policy, attempt, 0.0) == timedelta(0)
    assert backoff(policy, attempt, 1.0) == full
    assert abs(backoff(policy, attempt, 0.5) - full / 2) <= timedelta.resolution


@given(policies(), chances, attempts, attempts)
def test_a_later_attempt_never_waits_less_for_the_same_chance(
    policy: Retry, chance: float, one: int, other: int
) -> None:
    earlier, later = sorted([one, other])
    assert backoff(policy, earlier, chance) <= backoff(policy, later, chance)


def test_the_default_backoff_in_numbers() -> None:
    policy = Retry(jitter=False)
    assert [backoff(policy, attempt, 0.3).total_seconds() for attempt in (1, 2, 3, 4, 9, 10, 11, 12)] == [
        1, 2, 4, 8, 256, 512, 600, 600,
    ]  # fmt: skip


# ── the classes of failures ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "verdict", "delay"),
    [
        (ConnectionError("reset"), Verdict.TRANSIENT, None),
        (SoftTimeout(), Verdict.TRANSIENT, None),
        (SystemExit(1), Verdict.TRANSIENT, None),
        (GiveUp("no such order"), Verdict.PERMANENT, None),
        (InvalidPayload(), Verdict.PERMANENT, None),
        (PayloadTooLarge(), Verdict.PERMANENT, None),
        (TryAgain(), Verdict.AGAIN, None),
        (TryAgain("30s"), Verdict.AGAIN, 30 * SECOND),
        (Snooze("30s"), Verdict.SNOOZE, 30 * SECOND),
        (RateLimited("30"), Verdict.THROTTLED, 30 * SECOND),
        (BreakerOpen("stripe", "30s"), Verdict.BREAKER, 30 * SECOND),
        (RateLimited(), Verdict.THROTTLED, None),
        (PoolFull(), Verdict.POOL_FULL, POOL_DELAY),
    ],
    ids=lambda value: repr(value) if isinstance(value, BaseException) else "",
)
def test_the_classification_table(error: BaseException, verdict: Verdict, delay: timedelta | None) -> None:
    assert classify(error, Retry(), NOW) == (verdict, delay)


def test_a_full_pool_is_tried_again_after_five_seconds() -> None:
    assert timedelta(seconds=5) == POOL_DELAY


POOL_EXCEPTIONS = [
    "asyncpg.exceptions.TooManyConnectionsError",
    "psycopg.errors.TooManyConnections",
    "psycopg_pool.PoolTimeout",
    "psycopg_pool.TooManyRequests",
    "sqlalchemy.exc.TimeoutError",
]


@pytest.mark.parametrize("name", POOL_EXCEPTIONS)
def test_the_pools_people_use_are_known_by_the_names_of_their_exceptions(name: str) -> None:
    kind = raised_by_a_pool(name)
    assert classify(kind(), Retry(), NOW) == (Verdict.POOL_FULL, POOL_DELAY)


@pytest.mark.parametrize("name", POOL_EXCEPTIONS)
def test_a_subclass_of_a_pools_exception_is_known_too(name: str) -> None:
    own = type("OwnTimeout", (raised_by_a_pool(name),), {})
    assert verdict_on(own()) is Verdict.POOL_FULL


@pytest.mark.parametrize(
    "name", ["builtins.TimeoutError", "shop.PoolTimeout", "psycopg_pool.PoolClosed", "psycopg_pool.inner.PoolTimeout"]
)
def test_a_name_that_only_resembles_a_pools_exception_is_transient(name: str) -> None:
    assert verdict_on(raised_by_a_pool(name)()) is Verdict.TRANSIENT


def test_only_what_is_listed_in_on_is_retried() -> None:
    policy = Retry(on=[ConnectionError, KeyError])
    assert verdict_on(ConnectionResetError(), policy) is Verdict.TRANSIENT
    assert verdict_on(KeyError(), policy) is Verdict.TRANSIENT
    assert verdict_on(ValueError(), policy) is Verdict.PERMANENT


def test_an_empty_on_retries_nothing() -> None:
    assert verdict_on(ConnectionError(), Retry(on=[])) is Verdict.PERMANENT


def test_what_is_listed_in_never_on_is_not_retried() -> None:
    policy = Retry(never_on=[LookupError])
    assert verdict_on(KeyError(), policy) is Verdict.PERMANENT
    assert verdict_on(ValueError(), policy) is Verdict.TRANSIENT


def test_never_on_comes_before_on() -> None:
    policy = Retry(on=[OSError], never_on=[ConnectionError])
    assert verdict_on(ConnectionResetError(), policy) is Verdict.PERMANENT
    assert verdict_on(PermissionError(), policy) is Verdict.TRANSIENT


def test_a_soft_timeout_is_transient_whatever_on_lists() -> None:
    assert verdict_on(SoftTimeout(), Retry(on=[ConnectionError])) is Verdict.TRANSIENT


@pytest.mark.parametrize(
    ("signal", "verdict"),
    [
        (GiveUp(), Verdict.PERMANENT),
        (TryAgain(), Verdict.AGAIN),
        (Snooze(1), Verdict.SNOOZE),
        (RateLimited(1), Verdict.THROTTLED),
        (PoolFull(), Verdict.POOL_FULL),
    ],
)
@pytest.mark.parametrize("policy", [Retry(on=[]), Retry(never_on=[Exception])], ids=["on=[]", "never_on=[Exception]"])
def test_what_the_task_says_in_so_many_words_comes_before_the_lists(
    signal: Exception, verdict: Verdict, policy: Retry
) -> None:
    assert verdict_on(signal, policy) is verdict


@pytest.mark.parametrize("policy", [Retry(on=[KeyError]), Retry(never_on=[Exception])], ids=["on", "never_on"])
def test_the_lists_come_before_what_is_known_of_other_peoples_exceptions(policy: Retry) -> None:
    assert verdict_on(raised_by_a_pool("psycopg_pool.PoolTimeout")(), policy) is Verdict.PERMANENT


@given(
    st.sampled_from(
        [ValueError, KeyError, ConnectionError, OSError, GiveUp, PoolFull, RateLimited, TryAgain, SoftTimeout]
    ),
    st.lists(st.sampled_from([ValueError, LookupError, OSError, Exception])),
    st.lists(st.sampled_from([ValueError, LookupError, OSError, Exception])),
)
def test_only_exceptions_with_a_delay_of_their_own_carry_one(
    kind: type[BaseException], on: list[type[Exception]], never_on: list[type[Exception]]
) -> None:
    verdict, delay = classify(kind(), Retry(on=on, never_on=never_on), NOW)
    assert (delay is None) == (verdict is not Verdict.POOL_FULL)


# ── Retry-After ──────────────────────────────────────────────────────────────────────────────────────────────────────


def wait_for(retry_after: Any, now: datetime = NOW) -> timedelta | None:
    return classify(RateLimited(retry_after), Retry(), now)[1]


@given(st.integers(0, 10**6))
def test_retry_after_in_seconds_is_waited_exactly(seconds: int) -> None:
    assert wait_for(str(seconds)) == wait_for(seconds) == wait_for(f" {seconds} ") == timedelta(seconds=seconds)


@given(st.integers(-(10**6), 10**6), st.integers(-23, 23))
def test_retry_after_as_a_date_is_waited_until_then(seconds: int, offset: int) -> None:
    until = NOW + timedelta(seconds=seconds)
    expected = timedelta(seconds=max(seconds, 0))
    assert wait_for(format_datetime(until, usegmt=True)) == expected
    assert wait_for(format_datetime(until.astimezone(timezone(timedelta(hours=offset))))) == expected
    assert wait_for(until) == expected


def test_an_http_date_is_read_as_servers_write_it() -> None:
    assert wait_for("Tue, 01 Jan 2030 00:02:00 GMT") == timedelta(minutes=2)


def test_a_datetime_without_a_zone_is_taken_as_utc() -> None:
    assert wait_for((NOW + SECOND).replace(tzinfo=None)) == SECOND


def test_a_date_is_counted_from_when_it_is_judged() -> None:
    error = RateLimited(NOW + 60 * SECOND)
    assert classify(error, Retry(), NOW + 45 * SECOND)[1] == 15 * SECOND


@given(spans)
def test_retry_after_may_be_a_timedelta(span: timedelta) -> None:
    assert wait_for(span) == span


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("1h30m", 5400), ("250ms", 0.25), ("1w 1d 1h 1m 1s", 694_861)]
)
def test_retry_after_may_be_a_span(text: str, seconds: float) -> None:
    assert wait_for(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        " ",
        "soon",
        "NaN",
        "inf",
        "-inf",
        "1h1h",
        "Tue, 99 Foo 2030",
        "Tue, 01 Jan 2030 99:99:99 GMT",
        None,
        True,
        float("nan"),
    ],
)
def test_garbage_in_retry_after_means_the_usual_backoff(garbage: Any) -> None:
    assert wait_for(garbage) is None


@pytest.mark.parametrize("value", ["-5", -5, timedelta(seconds=-5), datetime.min.replace(tzinfo=UTC)])
def test_a_retry_after_in_the_past_is_no_wait(value: Any) -> None:
    assert wait_for(value) == timedelta(0)


@pytest.mark.parametrize(
    "value", ["9" * 300, 1e300, timedelta.max, datetime.max.replace(tzinfo=UTC), "Fri, 31 Dec 9999 23:59:59 GMT"]
)
def test_an_absurd_retry_after_is_cut_to_ten_years(value: Any) -> None:
    assert wait_for(value) == LONGEST


def test_an_integer_that_no_float_can_hold_does_not_break_rate_limited() -> None:
    assert wait_for(10**400) in (None, LONGEST)


@given(
    st.text()
    | st.text(alphabet="0123456789.-+eE_ smhdw")
    | st.from_regex(
        r"(\w{3}, )?\d{1,3}[ -]\w{3}[ -]\d{1,5} \d{1,3}:\d{1,3}(:\d{1,3})?( \w{1,4}| [+-]\d{1,5})?", fullmatch=True
    )
)
@example("Tue, 01 Jan 0001 00:00:00 +2359")
@example("Tue, 01 Jan 2030 00:00:00 +9999")
def test_no_header_whatever_breaks_rate_limited(header: str) -> None:
    delay = wait_for(header)
    assert delay is None or timedelta(0) <= delay <= LONGEST


@pytest.mark.parametrize(
    ("errors", "verdict", "delay"),
    [
        ([GiveUp()], Verdict.PERMANENT, None),
        ([Snooze("30s")], Verdict.SNOOZE, timedelta(seconds=30)),
        ([Snooze("30s"), Snooze("60s")], Verdict.SNOOZE, timedelta(seconds=60)),
        ([Snooze("30s"), ValueError()], Verdict.TRANSIENT, None),
        ([ValueError(), GiveUp()], Verdict.PERMANENT, None),
        ([ExceptionGroup("inner", [Cancel()]), ValueError()], Verdict.CANCEL, None),
    ],
)
def test_of_a_group_of_exceptions_the_severest_counts(
    errors: list[Exception], verdict: Verdict, delay: timedelta | None
) -> None:
    assert classify(ExceptionGroup("tasks", errors), Retry(), NOW) == (verdict, delay)
