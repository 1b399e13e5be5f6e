"""With which status a command ends."""

from __future__ import annotations

from enum import IntEnum

from holdfast.errors import (
    BreakerNotFound,
    ConfigurationError,
    HoldfastError,
    JobNotFound,
    LimitNotFound,
    ScheduleNotFound,
    StoreUnavailable,
    UnknownTask,
)
from holdfast.loading import CantLoad


class Status(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4


def status_of(error: HoldfastError) -> Status:
    match error:
        case CantLoad() if error.trace:
            return Status.FAILED
        case ConfigurationError():
            return Status.USAGE
        case JobNotFound() | LimitNotFound() | ScheduleNotFound() | BreakerNotFound() | UnknownTask():
            return Status.NOT_FOUND
        case StoreUnavailable():
            return Status.UNREACHABLE
        case _:
            return Status.FAILED
