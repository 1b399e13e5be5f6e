"""Ticks over every change of the clocks: one for each time of day, none twice, none left out, whoever asks when."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidOption
from holdfast.timing import At, Cron, Every, Timing, find_zone, first_shown, latest_ticks

ZONES = [
    "Africa/Casablanca",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Europe/Dublin",
    "Europe/Paris",
    "Pacific/Apia",
]
FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2038, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

Fits = Callable[[datetime], bool]

BY_THE_WALL: dict[str, Fits] = {
    "30 2 * * *": lambda time: (time.hour, time.minute) == (2, 30),
    "0 0 * * *": lambda time: (time.hour, time.minute) == (0, 0),
    "15,45 0-3 * * *": lambda time: time.hour <= 3 and time.minute in (15, 45),
    "0 3 * * mon-fri": lambda time: (time.hour, time.minute) == (3, 0) and time.weekday() < 5,
    "59 1 * * sun": lambda time: (time.hour, time.minute) == (1, 59) and time.weekday() == 6,
}
BY_TIME: dict[str, Fits] = {
    "*/15 * * * *": lambda time: time.minute % 15 == 0,
    "0 * * * *": lambda time: time.minute == 0,
    "*/20 2 * * *": lambda time: time.hour == 2 and time.minute % 20 == 0,
    "30 */2 * * *": lambda time: time.hour % 2 == 0 and time.minute == 30,
}


@cache
def changes(zone: str) -> list[datetime]:
    """Every moment from 2020 to 2037 at which the zone's clocks are put forward or back."""
    info = ZoneInfo(zone)
    found: list[datetime] = []
    hour, offset = FIRST, FIRST.astimezone(info).utcoffset()
    while hour < LAST:
        next_offset = (hour + HOUR).astimezone(info).utcoffset()
        if next_offset != offset:
            minute = hour
            while minute.astimezone(info).utcoffset() == offset:
                minute += MINUTE
            found.append(minute)
        hour, offset = hour + HOUR, next_offset
    return found


def windows(zone: str) -> Iterator[tuple[datetime, dict[datetime, datetime]]]:
    """Three days around each change, and around a day without one: each minute, and what the clock shows then."""
    info = ZoneInfo(zone)
    for change in [*changes(zone), datetime(2026, 6, 17, 12, tzinfo=UTC)]:
        start = change - 36 * HOUR
        minutes = [start + number * MINUTE for number in range(3 * 1440)]
        yield start, {minute: minute.astimezone(info).replace(tzinfo=None, fold=0) for minute in minutes}


def expected_by_the_wall(shown: dict[datetime, datetime], fits: Fits) -> list[datetime]:
    """By definition: a time of day has its tick when the clock first shows it or a later one."""
    ticks: list[datetime] = []
    highest: datetime | None = None
    for moment, time in shown.items():
        if highest is None:
            highest = time
            continue
        while highest < time:
            highest += MINUTE
            if fits(highest) and (not ticks or ticks[-1] != moment):
                ticks.append(moment)
    return ticks


def expected_by_time(shown: dict[datetime, datetime], fits: Fits) -> list[datetime]:
    return [moment for moment, time in shown.items() if fits(time)]


def ticks_from(timing: Timing, start: datetime, end: datetime) -> Iterator[datetime]:
    tick = timing.next_after(start)
    while tick is not None and tick < end:
        yield tick
        tick = timing.next_after(tick)


@pytest.mark.parametrize("zone", ZONES)
def test_there_is_a_tick_for_each_time_of_day_over_every_change_of_the_clocks(zone: str) -> None:
    chance = random.Random(zone)
    timings = {text: Cron(text, find_zone(zone)) for text in (*BY_THE_WALL, *BY_TIME)}
    assert zone in ("Asia/Kathmandu", "America/Sao_Paulo", "Asia/Tehran", "Pacific/Apia") or len(changes(zone)) >= 30
    for start, shown in windows(zone):
        end = start + len(shown) * MINUTE
        for text, fits in (*BY_THE_WALL.items(), *BY_TIME.items()):
            by_the_wall = text in BY_THE_WALL
            expected = expected_by_the_wall(shown, fits) if by_the_wall else expected_by_time(shown, fits)
            expected = [tick for tick in expected if tick > start]
            found = list(ticks_from(timings[text], start, end))
            assert found == expected, f"{text} in {zone} from {start}"
            assert all(earlier < later for earlier, later in pairwise(found))
            # Whoever asks from the middle sees the same: the next one, and from there on all that were just seen.
            anywhere = start + chance.random() * (end - start)
            following = next((tick for tick in expected if tick > anywhere), None)
            assert next(ticks_from(timings[text], anywhere, end), None) == following, (
                f"{text} in {zone} from {anywhere}"
            )


def test_what_the_clock_is_put_forward_over_fires_when_it_is() -> None:
    half_past_two = Cron("30 2 * * *", find_zone("Europe/Paris"))
    assert half_past_two.next_after(datetime(2026, 3, 29, tzinfo=UTC)) == datetime(2026, 3, 29, 1, tzinfo=UTC)


def test_what_the_clock_shows_twice_fires_the_first_time() -> None:
    half_past_two = Cron("30 2 * * *", find_zone("Europe/Paris"))
    first = half_past_two.next_after(datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert first == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert half_past_two.next_after(first) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    between_both = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)
    assert half_past_two.next_after(between_both) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("nickname", "first"),
    [
        ("@hourly", datetime(2026, 5, 5, 11, tzinfo=UTC)),
        ("@daily", datetime(2026, 5, 6, tzinfo=UTC)),
        ("@midnight", datetime(2026, 5, 6, tzinfo=UTC)),
        ("@weekly", datetime(2026, 5, 10, tzinfo=UTC)),
        ("@monthly", datetime(2026, 6, 1, tzinfo=UTC)),
        ("@yearly", datetime(2027, 1, 1, tzinfo=UTC)),
        ("@Annually", datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_nicknames_mean_what_everybody_thinks(nickname: str, first: datetime) -> None:
    assert Cron(nickname, find_zone("UTC")).next_after(datetime(2026, 5, 5, 10, 20, tzinfo=UTC)) == first


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("0 9 * *", "4 fields"),
        ("0 0 9 * * *", "6 fields"),
        ("61 * * * *", "minute"),
        ("0 25 * * *", "hour"),
        ("0 0 31 2 *", "day of month"),
        ("0 0 * * xyz", "day of week"),
        ("0 0 30 2 */2", "day"),
        ("@often", "@hourly"),
        ("mon", "fields"),
        ("* * * * mon#1/2", "day of week"),
        ("", "fields"),
    ],
)
def test_an_expression_that_makes_no_sense_is_refused_with_the_reason(expression: str, hint: str) -> None:
    with pytest.raises(InvalidOption, match=hint):
        Cron(expression, find_zone("UTC"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Paris", "Europe/Paris"), ("Europe/Pariss", "Europe/Paris"), ("", "Europe"), ("../etc", "not a")],
)
def test_an_unknown_zone_is_refused_with_the_one_that_may_be_meant(name: str, hint: str) -> None:
    with pytest.raises(InvalidOption, match=hint):
        find_zone(name)


# ── for all of them ──────────────────────────────────────────────────────────────────────────────────────────────────

moments = st.timedeltas(timedelta(0), LAST - FIRST).map(lambda span: FIRST + span)
fields = st.builds(
    lambda minute, hour, day, month, weekday: f"{minute} {hour} {day} {month} {weekday}",
    st.sampled_from(["*", "*/7", "0", "30", "5-55/10", "0,59"]),
    st.sampled_from(["*", "*/5", "0", "2", "1-3", "23"]),
    st.sampled_from(["*", "1", "31", "L", "*/9", "13,29"]),
    st.sampled_from(["*", "1", "2-4", "dec", "*/5"]),
    st.sampled_from(["*", "0", "mon-fri", "5L", "2#1"]),
)


def cron_of(text: str, zone: str) -> Cron | None:
    try:
        return Cron(text, find_zone(zone))
    except InvalidOption:
        return None  # a day that no month has


crons = st.builds(cron_of, fields, st.sampled_from(ZONES)).filter(lambda cron: cron is not None)
timings = st.one_of(
    crons,
    st.builds(Every, st.timedeltas(timedelta(seconds=1), timedelta(days=40))),
    st.builds(At, moments),
)


@given(timings, moments, st.timedeltas(timedelta(0), timedelta(days=3)))
def test_from_whatever_moment_the_ticks_are_the_same(timing: Timing, moment: datetime, later: timedelta) -> None:
    tick = timing.next_after(moment)
    if tick is None:
        assert timing.next_after(moment + later) is None
        return
    assert tick > moment
    between = min(moment + later, tick - timedelta(microseconds=1))
    assert timing.next_after(between) == tick
    following = timing.next_after(tick)
    assert following is None or following > tick


@given(timings, moments, st.integers(0, 30), st.integers(1, 8), st.timedeltas(timedelta(0), timedelta(hours=2)))
def test_the_latest_ticks_are_the_last_of_all(
    timing: Timing, moment: datetime, number: int, most: int, later: timedelta
) -> None:
    first = timing.next_after(moment)
    if first is None:
        return
    ticks = [first]
    for _ in range(number):
        following = timing.next_after(ticks[-1])
        if following is None:
            break
        ticks.append(following)
    now = ticks[-1] + later
    ticks += ticks_from(timing, ticks[-1], now + timedelta(microseconds=1))
    assert latest_ticks(timing, first, now, most) == (ticks[-most:], len(ticks) > most)


@given(st.timedeltas(timedelta(seconds=1), timedelta(days=400)), moments)
def test_an_interval_is_counted_from_1970(interval: timedelta, moment: datetime) -> None:
    tick = Every(interval).next_after(moment)
    assert (tick - datetime(1970, 1, 1, tzinfo=UTC)) % interval == timedelta(0)
    assert moment < tick <= moment + interval


def test_an_interval_below_a_second_is_refused() -> None:
    with pytest.raises(InvalidOption, match="shortest interval is 1s"):
        Every(timedelta(milliseconds=999))


@given(st.sampled_from(ZONES), moments)
def test_a_time_that_a_clock_shows_is_found_again(zone: str, moment: datetime) -> None:
    info = find_zone(zone)
    local = moment.astimezone(info)
    found = first_shown(local.replace(tzinfo=None, fold=0), info)
    assert found == moment if not local.fold else found < moment
