"""Moments as numbers: microseconds since 1970, exact, as the stores keep and compare them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def to_microseconds(time: datetime) -> int:
    return (time - EPOCH) // MICROSECOND


def from_microseconds(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)
