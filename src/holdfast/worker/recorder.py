"""The flight recorder: what a worker process holds and does, in memory that outlives it.

The process writes, a few bytes for each step of a job; its supervisor reads, also while the process is stuck, and
after it is dead. So it is known within milliseconds which jobs were lost with it, which of them had started, and
which one was on the CPU. An embedded worker has one too, in its own memory: there a thread reads it.

    header │ on_cpu turned_at overdue_at finished │ tokens of claims under way │ slot slot slot …

Whoever runs a job outside of the event loop says itself that it has ended: a thread, and the process of an isolated
job. The loop may be blocked by somebody else, and whoever is done must not be blamed for that.

Nothing is locked. A slot's phase is written last when it is filled, and a slot is read until it was the same twice, so
a reader sees it whole or not at all; and tokens are read before slots, so that a job is always seen in one of the two.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from datetime import timedelta
from enum import IntEnum
from typing import Final
from uuid import UUID

import msgspec

from holdfast.breaker import Permit
from holdfast.job import ClaimedJob, Delivery
from holdfast.retry import Retry
from holdfast.store import Held

NEVER: Final = float("inf")
MOST_CLAIMS: Final = 8
"""Claims of one process that may be under way at once."""

# In the machine's own form, in which a number is written at once and never seen half: both sides are on one machine.
_HEADER: Final = struct.Struct("@ii8xddQ")  # slots, on_cpu, turned_at, overdue_at, finished
_TIME: Final = struct.Struct("@d")
_COUNT: Final = struct.Struct("@Q")
_TURNED_AT: Final = 16
_OVERDUE_AT: Final = 24
_FINISHED_AT: Final = 32
_TOKENS_AT: Final = 64
_SLOTS_AT: Final = _TOKENS_AT + 16 * MOST_CLAIMS
_SLOT_SIZE: Final = 232
_CLAIM: Final = struct.Struct("=16s16sIIIIIB")  # id, token, attempt, max_attempts, crashes, waits, pool_tries, delivery
_KIND: Final = struct.Struct("=Bdd?H70s")  # place, base and cap of its backoff, whether with jitter, fuse, name
_RUN: Final = struct.Struct("@ddi")  # started_at, overdue_at, pid
_TRY: Final = struct.Struct("=16s16sQ")  # the job that tries, its permit's id, and the opening that it is about
_PHASE_AT: Final = 0
_RUN_AT: Final = 8
_CLAIM_AT: Final = 32
_KIND_AT: Final = 96
_TRY_AT: Final = 192
_MOST_FUSES: Final = 0xFFFF
_DELIVERIES: Final = tuple(Delivery)
_DELIVERY_NUMBERS: Final = {delivery: number for number, delivery in enumerate(_DELIVERIES)}

Buffer = mmap.mmap | bytearray


class Phase(IntEnum):
    """How far a job has come in this process."""

    FREE = 0
    CLAIMED = 1
    STARTED = 2
    FINISHED = 3
    """Its task has ended, and the loop or the store has not been told yet, or has not answered."""


class Place(IntEnum):
    """Where a job runs."""

    LOOP = 0
    THREAD = 1
    PROCESS = 2


class Entry(msgspec.Struct, frozen=True):
    """A slot as it was read. Times are those of the machine's monotonic clock, the same for all its processes."""

    slot: int
    phase: Phase
    id: UUID
    token: UUID
    task: str
    place: Place
    attempt: int
    max_attempts: int
    crashes: int
    waits: int
    pool_tries: int
    delivery: Delivery
    retry: Retry
    started_at: float
    overdue_at: float
    pid: int
    """Of the process that it has for itself, 0 if it has none."""
    fuse: int = 0
    """The number of its task's breaker among those of the app, from 1; 0 if it has none."""
    permit: Permit | None = None
    """If it is a probe of that breaker."""


class Flight(msgspec.Struct, frozen=True):
    """All that a recorder says at one moment."""

    claiming: frozenset[UUID]
    entries: tuple[Entry, ...]
    on_cpu: int
    """The slot whose coroutine the event loop is in; -1 if it is in none."""
    turned_at: float
    """When the event loop last came round."""
    finished: int

    @property
    def held(self) -> Held:
        # While a settlement is being answered, the same job may have been claimed anew: the newer claim counts.
        by_phase = sorted(self.entries, key=lambda entry: entry.phase is not Phase.FINISHED)
        tokens = {entry.token for entry in self.entries}
        return Held({entry.id: entry.token for entry in by_phase}, self.claiming | tokens)

    @property
    def running(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.phase is Phase.STARTED)


def size_for(slots: int) -> int:
    """How many bytes a recorder with so many slots needs."""
    return _SLOTS_AT + _SLOT_SIZE * slots


def describe_task(name: str, place: Place, retry: Retry, fuse: int = 0) -> bytes:
    """What is recorded of every job of a task, prepared once. `fuse` is the number of its breaker."""
    shown = name.encode()[:70].decode(errors="ignore").encode()
    number = fuse if fuse <= _MOST_FUSES else 0
    return _KIND.pack(place, retry.base.total_seconds(), retry.cap.total_seconds(), retry.jitter, number, shown)


class Recorder:
    """The writing side. Slots are given out and taken back here."""

    def __init__(self, buffer: Buffer, slots: int, file: int | None = None) -> None:
        """`file`: what the memory is of, for processes of isolated jobs."""
        self.file = file
        self._buffer = buffer
        self._bytes = memoryview(buffer)
        self._offsets = [_SLOTS_AT + _SLOT_SIZE * number for number in range(slots)]
        self._free = list(reversed(range(slots)))
        self._tokens = list(range(MOST_CLAIMS))
        self._overdue_at = NEVER
        self.slots = slots
        _HEADER.pack_into(buffer, 0, slots, -1, 0.0, NEVER, 0)
        self.on_cpu = self._bytes[4:8].cast("i")
        """One number, to be written by whoever runs a coroutine."""

    @classmethod
    def in_memory(cls, slots: int) -> Recorder:
        return cls(bytearray(size_for(slots)), slots)

    @property
    def free(self) -> int:
        return len(self._free)

    def flight(self) -> Flight:
        return read_flight(self._buffer)

    # ── claims ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def claiming(self, token: UUID) -> int:
        """A claim is about to be sent. Returns its number."""
        number = self._tokens.pop()
        at = _TOKENS_AT + 16 * number
        self._bytes[at : at + 16] = token.bytes
        return number

    def answered(self, number: int) -> None:
        """What that claim brought is in its slots, or it has failed."""
        at = _TOKENS_AT + 16 * number
        self._bytes[at : at + 16] = bytes(16)
        self._tokens.append(number)

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def claimed(self, job: ClaimedJob, task: bytes) -> int:
        """Put a job into a free slot, and return its number. `task` comes from `describe_task`."""
        slot = self._free.pop()
        at = self._offsets[slot]
        _CLAIM.pack_into(
            self._buffer,
            at + _CLAIM_AT,
            job.id.bytes,
            job.token.bytes,
            job.attempt,
            job.max_attempts,
            job.crashes,
            job.waits,
            job.pool_tries,
            _DELIVERY_NUMBERS[job.delivery],
        )
        self._bytes[at + _KIND_AT : at + _KIND_AT + _KIND.size] = task
        self._bytes[at + _PHASE_AT] = Phase.CLAIMED
        return slot

    def trying(self, slot: int, job: UUID, permit: Permit) -> None:
        """Its job is let through a breaker to try. Nobody takes that back: the next job is another one."""
        _TRY.pack_into(self._buffer, self._offsets[slot] + _TRY_AT, job.bytes, permit.id.bytes, permit.opening)

    def started(self, slot: int, started_at: float, overdue_at: float, pid: int = 0) -> None:
        at = self._offsets[slot]
        _RUN.pack_into(self._buffer, at + _RUN_AT, started_at, overdue_at, pid)
        self._bytes[at + _PHASE_AT] = Phase.STARTED
        if overdue_at < self._overdue_at:
            self._write_overdue(overdue_at)

    def moved(self, slot: int, place: Place) -> None:
        """The rest of it runs there. From any thread."""
        self._bytes[self._offsets[slot] + _KIND_AT] = place

    def finished(self, slot: int) -> None:
        """From any thread."""
        self._bytes[self._offsets[slot]] = Phase.FINISHED

    def phase_of(self, slot: int) -> int:
        """Where its phase stands in the file, for an outpost."""
        return self._offsets[slot] + _PHASE_AT

    def settled(self, slot: int) -> None:
        """The store has answered: this process has nothing to do with the job any more."""
        self._bytes[self._offsets[slot]] = Phase.FREE
        self._free.append(slot)

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def turned(self, now: float, finished: int, overdue_at: float) -> None:
        """The event loop came round. `overdue_at`: when the first of the running jobs must be over."""
        _TIME.pack_into(self._buffer, _TURNED_AT, now)
        self.counted(finished)
        self._write_overdue(overdue_at)

    def counted(self, finished: int) -> None:
        """How many jobs this process has finished."""
        _COUNT.pack_into(self._buffer, _FINISHED_AT, finished)

    def _write_overdue(self, overdue_at: float) -> None:
        self._overdue_at = overdue_at
        _TIME.pack_into(self._buffer, _OVERDUE_AT, overdue_at)


class Outpost:
    """The writing side in the process of an isolated job. No crash can spoil the memory there: it has only the file."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._identity = os.fstat(file)

    def finished(self, at: int) -> None:
        """The job whose phase stands there has ended."""
        with contextlib.suppress(OSError):
            # A task may have closed all files that it does not know, and opened others.
            if os.path.samestat(os.fstat(self._file), self._identity):
                os.pwrite(self._file, bytes([Phase.FINISHED]), at)


# ── the reading side ─────────────────────────────────────────────────────────────────────────────────────────────────


def read_overdue(buffer: Buffer) -> float:
    """When to look at this recorder: until then none of its jobs is overdue."""
    overdue_at: float
    (overdue_at,) = _TIME.unpack_from(buffer, _OVERDUE_AT)
    return overdue_at


def read_flight(buffer: Buffer) -> Flight:
    """What a recorder says now. The order matters: see the top of this file."""
    claiming = frozenset(_read_tokens(buffer))
    slots, on_cpu, turned_at, _, finished = _HEADER.unpack_from(buffer, 0)
    entries = tuple(_read_slots(buffer, slots))
    return Flight(claiming, entries, on_cpu, turned_at, finished)


def _read_tokens(buffer: Buffer) -> Iterator[UUID]:
    for number in range(MOST_CLAIMS):
        token = bytes(buffer[_TOKENS_AT + 16 * number : _TOKENS_AT + 16 * (number + 1)])
        if any(token):
            yield UUID(bytes=token)


def _read_slots(buffer: Buffer, slots: int) -> Iterator[Entry]:
    for slot in range(slots):
        at = _SLOTS_AT + _SLOT_SIZE * slot
        while buffer[at + _PHASE_AT]:
            seen = bytes(buffer[at : at + _SLOT_SIZE])
            # While it is filled its phase is that of a free one, so what is the same twice was not half filled.
            if seen[_PHASE_AT] and seen == buffer[at : at + _SLOT_SIZE]:
                yield _read_slot(seen, slot)
                break


def _read_slot(seen: bytes, slot: int) -> Entry:
    phase = Phase(seen[_PHASE_AT])
    id, token, attempt, most, crashes, waits, pool_tries, delivery = _CLAIM.unpack_from(seen, _CLAIM_AT)
    place, base, cap, jitter, fuse, name = _KIND.unpack_from(seen, _KIND_AT)
    trying, permit, opening = _TRY.unpack_from(seen, _TRY_AT)
    started_at, overdue_at, pid = _RUN.unpack_from(seen, _RUN_AT)
    return Entry(
        slot=slot,
        phase=phase,
        id=UUID(bytes=id),
        token=UUID(bytes=token),
        task=name.rstrip(b"\0").decode(errors="replace"),
        place=Place(place),
        attempt=attempt,
        max_attempts=most,
        crashes=crashes,
        waits=waits,
        pool_tries=pool_tries,
        delivery=_DELIVERIES[delivery],
        retry=Retry(base=timedelta(seconds=base), cap=timedelta(seconds=cap), jitter=jitter),
        started_at=started_at if phase is not Phase.CLAIMED else 0.0,
        overdue_at=overdue_at if phase is Phase.STARTED else NEVER,
        pid=pid if phase is Phase.STARTED else 0,
        fuse=fuse,
        permit=Permit(UUID(bytes=permit), opening) if trying == id else None,
    )
