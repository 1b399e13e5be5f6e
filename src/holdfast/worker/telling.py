"""What a worker says in the terminal: plain lines, each with its time, its level and who says it."""

from __future__ import annotations

import logging
import sys

from holdfast.context import current
from holdfast.worker.patient_handler import PatientHandler


class JobFilter(logging.Filter):
    """Gives records the job in whose task they were made: `job_id`, `task`, `queue`, `attempt`."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = current.get()
        if context is not None:
            for name, value in context.log_fields.items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True


class _Lines(logging.Formatter):
    def __init__(self, who: str) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(who)s %(message)s", "%H:%M:%S")
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        job = getattr(record, "job_id", None)
        is_of_a_task = record.name.startswith("holdfast.task.")  # said through its context
        is_ours = record.name.startswith("holdfast.")
        who = f"[{self._who}]" if is_ours else f"[{self._who}] {record.name}:"
        if job is not None and (is_of_a_task or not is_ours):
            who += f" ({getattr(record, 'task', '')} {job})"
        record.__dict__["who"] = who
        return super().format(record)


def tell_the_rest() -> None:
    """Lines that wait for their reader, before a process ends that does not clean up after itself."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PatientHandler):
            handler.flush()


def set_up_logging(level: str, who: str) -> None:
    """Lines on the standard error, unless the app has set up logging itself."""
    root = logging.getLogger()
    if not root.handlers:
        handler = _handler()
        handler.setFormatter(_Lines(who))
        handler.addFilter(JobFilter())
        root.addHandler(handler)
    root.setLevel(level)


def _handler() -> logging.Handler:
    try:
        return PatientHandler(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # it is no file
        return logging.StreamHandler(sys.stderr)


def tell_handlers_of_jobs() -> None:
    """Let the handlers that an app has set up by now have the job in their records, too. Once more does no harm.

    Not by the records' factory: whatever that puts there, nobody could say with `extra=` any more.
    """
    for logger in (logging.getLogger(), *logging.Logger.manager.loggerDict.values()):
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            if not any(isinstance(each, JobFilter) for each in handler.filters):
                handler.addFilter(JobFilter())
