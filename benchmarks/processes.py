"""Several processes that begin together, and what each of them reports."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

Report = TypeVar("Report")

_TO_START = 60.0
_TO_END = 10.0


def reports_of_all(work: Callable[..., Report], arguments: Sequence[tuple[Any, ...]], seconds: float) -> list[Report]:
    """Call `work` with each of these arguments, and a barrier, in a process of its own. It takes about `seconds`."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(arguments), timeout=_TO_START)
    processes: list[SpawnProcess] = []
    receivers: list[Connection] = []
    for each in arguments:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_report, args=(work, each, barrier, sender))
        process.start()
        sender.close()  # so that the end of the process is seen here
        processes.append(process)
        receivers.append(receiver)
    try:
        return [_received(receiver, _TO_START + seconds) for receiver in receivers]
    finally:
        for process in processes:
            process.join(_TO_END)
            process.kill()


def _report(work: Callable[..., object], arguments: tuple[Any, ...], barrier: Barrier, answer: Connection) -> None:
    answer.send(work(*arguments, barrier))


def _received(receiver: Connection, seconds: float) -> Any:
    if not receiver.poll(seconds):
        raise TimeoutError("One of the processes does not answer.")
    return receiver.recv()
