"""Spans of time as people write them: "30s", "5m", "1h30m", seconds, or a timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from holdfast.errors import InvalidOption

Span = str | int | float | timedelta
"""A length of time: "250ms", "30s", "5m", "1h30m", "7d", a number of seconds, or a timedelta."""

LONGEST = timedelta(days=3650)

_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"\s*{_PART.pattern}(?:\s*{_PART.pattern})*\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LARGEST_FIRST = ("w", "d", "h", "m", "s", "ms")


def parse_span(value: Span, name: str = "span") -> timedelta:
    """Turn a span into a timedelta from 0 to ten years; raise InvalidOption, naming the option, for anything else."""
    if isinstance(value, timedelta):
        span = value
    elif isinstance(value, str):
        span = timedelta(seconds=_seconds_of(value, name))
    elif isinstance(value, bool) or not isinstance(value, int | float) or _is_no_number(value):
        raise InvalidOption(f"{name}={_shown(value)} is not a span. Write '30s', '5m', '1h30m' or a number of seconds.")
    elif abs(value) > LONGEST.total_seconds():
        if value < 0:
            raise InvalidOption(f"{name} is negative. Spans start at 0.")
        raise InvalidOption(f"{name} is longer than ten years. Give a shorter span.")
    else:
        span = timedelta(seconds=value)
    if span < timedelta(0):
        raise InvalidOption(f"{name}={_shown(value)} is negative. Spans start at 0.")
    if span > LONGEST:
        raise InvalidOption(f"{name}={_shown(value)} is longer than ten years. Give a shorter span.")
    return span


def format_span(span: timedelta) -> str:
    """Write a span so that `parse_span` reads it back: 5400 s become "1h30m"."""
    microseconds = span // timedelta(microseconds=1)
    parts: list[str] = []
    for unit in _LARGEST_FIRST[:-1]:
        count, microseconds = divmod(microseconds, round(_SECONDS[unit] * 1_000_000))
        if count:
            parts.append(f"{count}{unit}")
    if microseconds:
        parts.append(f"{microseconds / 1000:g}ms")
    return "".join(parts) or "0s"


def _seconds_of(text: str, name: str) -> float:
    parts = _PART.findall(text.lower()) if len(text) <= 100 and _WHOLE.fullmatch(text.lower()) else []
    units = [unit for _, unit in parts]
    if not parts or units != sorted(set(units), key=_LARGEST_FIRST.index):
        raise InvalidOption(f"{name}={_shown(text)} is not a span. Write '30s', '5m', '1h30m' or a number of seconds.")
    seconds = math.fsum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > LONGEST.total_seconds():
        raise InvalidOption(f"{name}={_shown(text)} is longer than ten years. Give a shorter span.")
    return seconds


def _is_no_number(value: float) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | timedelta) else f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "…"
