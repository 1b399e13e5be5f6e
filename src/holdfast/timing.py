"""When something happens again and again: by cron, at an interval, or once. Moments come out in UTC, as ticks.

What has passed decides nothing: from whatever moment the ticks are asked for, they are the same.

A cron expression speaks of a clock on a wall, which is put forward and back. If it names hours and minutes, each time
of day that it names has one tick: when the clock first shows it, or, if that is left out because the clock is put
forward, when it is. If hours or minutes begin with a star, every moment has a tick at which the clock shows a time that
fits.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from holdfast.errors import InvalidOption
from holdfast.moment import EPOCH
from holdfast.span import format_span

SHORTEST_INTERVAL: Final = timedelta(seconds=1)
_SECOND: Final = timedelta(seconds=1)
_HALF_A_DAY: Final = timedelta(hours=12)
"""No zone changes its offset twice within it."""
_FIRST_YEAR: Final = datetime(2000, 1, 1, tzinfo=UTC)
_LOOK_BACK: Final = tuple(timedelta(hours=24 * days) for days in (1 / 24, 1 / 6, 1, 4, 15, 60, 180, 366, 1500, 3300))
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Timing(Protocol):
    """The ticks of something."""

    def next_after(self, moment: datetime) -> datetime | None:
        """The first tick that is later than this moment; None if there is none any more."""
        ...

    @property
    def shortest_gap(self) -> timedelta | None:
        """The least time between two ticks, as far as it can be seen; None if there is only one."""
        ...


class Cron:
    """Ticks by a clock on a wall in some zone."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        """InvalidOption if it is not five fields that have a meaning, or if there is no such day in any year."""
        self.expression = expression
        self._fields = _fields_of(expression)
        self._zone = zone
        minute, hour = self._fields.split()[:2]
        self._is_by_the_wall = not minute.startswith("*") and not hour.startswith("*")
        if self._next_shown(_reading(_FIRST_YEAR, zone)) is None:
            raise InvalidOption(f"cron={expression!r} never comes: there is no such day. Correct day and month.")

    def next_after(self, moment: datetime) -> datetime | None:
        whole = moment.astimezone(UTC)
        return self._next_by_the_wall(whole) if self._is_by_the_wall else self._next_by_time(whole)

    def _next_by_the_wall(self, moment: datetime) -> datetime | None:
        shown = _reading(moment, self._zone)
        while (next_shown := self._next_shown(shown)) is not None:
            tick = first_shown(next_shown, self._zone)
            # When the clock has been put back, it shows again what it has shown before.
            if tick > moment:
                return tick
            shown = next_shown
        return None

    def _next_by_time(self, moment: datetime) -> datetime | None:
        shown = _reading(moment, self._zone)
        while (next_shown := self._next_shown(shown)) is not None:
            tick = moment + (next_shown - _reading(moment, self._zone))
            change = _next_change(moment, tick, self._zone)
            if change is None:
                return tick
            moment = change
            # What the clock shows at the change itself may fit, too.
            shown = _reading(moment, self._zone) - _SECOND
        return None

    def _next_shown(self, shown: datetime) -> datetime | None:
        """The next time of the calendar that fits, whether or not a clock in the zone shows it."""
        return next(CronSim(self._fields, shown), None)

    @property
    def shortest_gap(self) -> timedelta | None:
        ticks = list(_first(self, _FIRST_YEAR, 25))
        return min((later - earlier for earlier, later in pairwise(ticks)), default=None)


class Every:
    """Ticks at all multiples of an interval since 1970, so that everybody finds the same ones."""

    def __init__(self, interval: timedelta) -> None:
        if interval < SHORTEST_INTERVAL:
            raise InvalidOption(
                f"every={format_span(interval)} is too often. The shortest interval is "
                f"{format_span(SHORTEST_INTERVAL)}; let the task itself do more."
            )
        self.interval = interval

    def next_after(self, moment: datetime) -> datetime:
        return EPOCH + ((moment - EPOCH) // self.interval + 1) * self.interval

    @property
    def shortest_gap(self) -> timedelta:
        return self.interval


class At:
    """One tick."""

    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def next_after(self, moment: datetime) -> datetime | None:
        return self.moment if self.moment > moment else None

    @property
    def shortest_gap(self) -> None:
        return None


def latest_ticks(timing: Timing, first: datetime, now: datetime, most: int) -> tuple[list[datetime], bool]:
    """The last ticks from `first`, which is one, up to now, at most so many; and whether there were more."""
    if isinstance(timing, Every):
        return _multiples(timing.interval, first, now, most)
    for span in _LOOK_BACK:
        since = now - span
        ticks = list(_until(timing, max(since, first - _SECOND), now))
        if since < first or len(ticks) >= most:
            return ticks[-most:], len(ticks) > most or since >= first
    ticks = list(_until(timing, first - _SECOND, now))
    return ticks[-most:], len(ticks) > most


def _multiples(interval: timedelta, first: datetime, now: datetime, most: int) -> tuple[list[datetime], bool]:
    number = (now - first) // interval + 1
    kept = min(number, most)
    last = first + (number - 1) * interval
    return [last - back * interval for back in reversed(range(kept))], number > kept


def _until(timing: Timing, moment: datetime, end: datetime) -> Iterator[datetime]:
    tick = timing.next_after(moment)
    while tick is not None and tick <= end:
        yield tick
        tick = timing.next_after(tick)


def _first(timing: Timing, moment: datetime, number: int) -> Iterator[datetime]:
    tick = timing.next_after(moment)
    while tick is not None and number:
        yield tick
        tick, number = timing.next_after(tick), number - 1


# ── zones ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def find_zone(name: object) -> ZoneInfo:
    """A zone by its name in the time zone database; InvalidOption, with what may be meant, if there is none."""
    try:
        if isinstance(name, str) and name and len(name) <= 100:
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    known = {zone.lower(): zone for zone in available_timezones()}
    wanted = str(name).lower()
    ending = [zone for zone in sorted(known) if zone.endswith(f"/{wanted}")]
    near = ending or difflib.get_close_matches(wanted, sorted(known), 1)
    hint = f"Did you mean {known[near[0]]!r}?" if near else "Write it as in 'Europe/Paris'."
    raise InvalidOption(f"tz={str(name)[:60]!r} is not a time zone. {hint}")


def first_shown(shown: datetime, zone: ZoneInfo) -> datetime:
    """When a clock in this zone shows a time for the first time; if it never does, when it is put forward over it."""
    earlier, later = (shown.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if earlier <= later:
        return earlier  # the usual case; and if the clock shows it twice, the first of them
    change = _next_change(later, earlier, zone)
    return earlier if change is None else change


def _reading(moment: datetime, zone: ZoneInfo) -> datetime:
    """What a clock in this zone shows."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _next_change(after: datetime, until: datetime, zone: ZoneInfo) -> datetime | None:
    """The first moment after one and up to another at which the zone has another offset than before."""
    offset = _offset(after, zone)
    low = after
    while low < until:
        high = min(low + _HALF_A_DAY, until)
        if _offset(high, zone) != offset:
            break
        low = high
    else:
        return None
    # Changes fall on whole seconds.
    low, high = low.replace(microsecond=0), high.replace(microsecond=0)
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if _offset(middle, zone) == offset:
            low = middle
        else:
            high = middle
    return high


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


# ── expressions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _fields_of(expression: object) -> str:
    if not isinstance(expression, str) or len(expression) > 200:
        raise InvalidOption("cron= takes a text such as '0 9 * * mon-fri', or '@daily'.")
    text = expression.strip()
    if text.startswith("@"):
        if text.lower() not in _NICKNAMES:
            raise InvalidOption(f"cron={expression!r} is not known. There are: {', '.join(_NICKNAMES)}.")
        return _NICKNAMES[text.lower()]
    fields = text.split()
    if len(fields) != 5:
        raise InvalidOption(
            f"cron={expression!r} has {len(fields)} fields instead of five: minute, hour, day, month and weekday. "
            "Write it as in '0 9 * * mon-fri'."
        )
    try:
        CronSim(text, _FIRST_YEAR)
    except (CronSimError, AssertionError, ValueError, IndexError) as error:
        said = str(error)
        field = said.removeprefix("Bad ").replace("-", " ") if said.startswith("Bad ") else "one of its fields"
        raise InvalidOption(
            f"cron={expression!r} can't be read: there is something wrong with {field}. The fields are minute (0-59), "
            "hour (0-23), day (1-31), month (1-12 or jan-dec) and weekday (0-7 or sun-sat)."
        ) from None
    return text
