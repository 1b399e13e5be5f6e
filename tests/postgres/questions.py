"""Something to ask with each statement of the store, about a batch of jobs of the crowd."""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec

from holdfast.stores.postgres.floors import LANES
from tests.postgres.crowd import (
    BREAKER,
    GATE,
    IN_LINE,
    LATER,
    LINE,
    LINED_QUEUE,
    QUEUE,
    TASK,
    TOKEN,
    WORKER,
    id_of,
    ids_of,
)

_RETENTION = 1_000_000


def values_of(name: str, batch: int, floor: int = 0) -> list[object]:
    """The values of a statement, as the store would give them. They are right, so that there is something to do."""
    active, finished = ids_of(3, batch), ids_of(4, batch)
    keys = [str(number) for number in range(1, batch + 1)]
    lined, lines, gates = ids_of(IN_LINE, batch), ids_of(LINE, batch), ids_of(GATE, batch)
    ones, texts = [1] * batch, ["task"] * batch
    values: dict[str, list[object]] = {
        "announced": [active, [0] * batch],
        "arrange_breakers": [None],
        "arrange_schedules": [None],
        "attempts": [finished[0]],
        "attend": [WORKER, LINED_QUEUE, None, batch, [floor] * LANES, batch],
        "asked_to_stop": [active],
        "be_forgettable": [],
        "beat": [WORKER, None, True],
        "breakers": [[TASK], None],
        "busy_queues": [],
        "circumstances": [[id_of(2, 1)], None, 10 * batch],
        "claim": [WORKER, uuid4(), [QUEUE], [batch], [floor] * LANES, None],
        "claimed": [WORKER, TOKEN],
        "close_keys": [active, 0, _RETENTION],
        "complete": [active, [TOKEN] * batch, ["null"] * batch, active, None, _RETENTION],
        "complete_lined": [active, [TOKEN] * batch, ["null"] * batch, active, None, _RETENTION],
        "current_turns": [[LINED_QUEUE], [5]],
        "declare_dead": [[WORKER], [-1], None],
        "declare_queues": [[QUEUE], [5], [5]],
        "delete": [finished],
        "depart": [WORKER],
        "due_gates": [None, batch],
        "due_schedules": [None, batch],
        "empty": [[WORKER]],
        "end_work": [[WORKER]],
        "find_keys": [[TASK] * batch, [1] * batch, keys],
        "first_in_lines": [LINED_QUEUE, lines, ones, 0],
        "forget_gates": [gates],
        "forget_lines": [lines],
        "forget_schedule": [TASK],
        "forgotten_lines": [id_of(LINE, 500), batch],
        "held": [WORKER, active, LATER],
        "insert_jobs": [
            _json([{"id": str(uuid4()), "task": TASK, "queue": QUEUE, "args": "{}"} for _ in range(batch)]),
            None,
            None,
            "[]",
        ],
        "know_queues": [[QUEUE]],
        "known_jobs": [finished],
        "limits": [None, None, None, batch, 10, None],
        "lines_of": [lined],
        "lines_of_ready": [lined, 0],
        "lock_active_of_worker": [WORKER],
        "lock_breakers": [[TASK], None],
        "lock_by_id": [finished],
        "lock_closed_lines": [lines],
        "lock_behind_breaker": [BREAKER, batch],
        "lock_dead": [],
        "lock_expired": [None, batch],
        "lock_gates": [gates],
        "look_at_lines": [LINED_QUEUE, 5, batch, batch, batch, 0, lines, ones, batch, None],
        "lock_orphans": [[WORKER], batch],
        "lock_schedules": [[TASK]],
        "lock_workers": [[WORKER]],
        "make_gates": [ids_of(GATE, batch, 10**6), ones, texts, texts, ones, ones, [False] * batch],
        "make_lines": [_json([_line(id) for id in ids_of(LINE, batch, 10**6)])],
        "nearly_full": [[QUEUE]],
        "next_due": [],
        "next_line": [LINED_QUEUE, 5],
        "now": [None],
        "open_lines": [LINED_QUEUE, 5, batch],
        "open_unrated_lines": [LINED_QUEUE, 5, batch, LATER, batch],
        "pause": [QUEUE, None],
        "progress": [finished],
        "prunable": [id_of(4, 500), id_of(5, 0), batch, LATER, LATER, None, LATER],
        "prune": [finished, LATER, LATER, None, LATER],
        "prune_keys": [LATER, batch],
        "prune_workers": [0],
        "publish_tasks": [["task"], ["{}"], None, None],
        "put_back_wakes": [LINED_QUEUE, lines, ones, texts],
        "queues": [],
        "quiet": [WORKER],
        "reached_turns": [[LINED_QUEUE]],
        "ready_in_lines": [LINED_QUEUE, lines, ones, 0],
        "record_failures": [_json([_failure(id) for id in active])],
        "record_ticks": [[TASK] * batch, list(range(batch)), finished],
        "recount": [QUEUE],
        "register": [uuid4(), "name", "host", 1, [QUEUE], None, True, [TASK]],
        "report_progress": [active, [TOKEN] * batch, [1.0] * batch, [2.0] * batch, [""] * batch, None],
        "resume": [QUEUE],
        "ripen": [None, batch],
        "save": [_json([_saved(id) for id in active])],
        "save_rules": [gates, ones, ones, ones, [False] * batch, ones],
        "save_traffic": _traffic(batch),
        "save_breakers": [[TASK], ["{}"]],
        "save_schedules": [[TASK], [1], [LATER], ["{}"]],
        "schedules": [[TASK]],
        "select_by_id": [finished],
        "select_gates": [gates],
        "select_lines": [lines],
        "select_finished": [finished],
        "select_unannounced": [batch],
        "set_bound": [QUEUE, 7],
        "sightings": [],
        "start": [*_traffic(batch), WORKER, TOKEN, lined],
        "take_wakes": [LINED_QUEUE, batch, batch],
        "take_keys": [_json([_key(id, key) for id, key in zip(finished, keys, strict=True)]), LATER],
        "tasks": [],
        "tell_lines": [lines, texts, ones],
        "tell_lock": [[WORKER], True, None],
        "ticks": [TASK, batch],
        "trim_history": [finished, 0],
        "trim_ticks": [[TASK], batch],
        "try_gates": [gates],
        "unfinished_ticks": [[TASK]],
        "unused_gates": [batch],
        "wait_for_line": [id_of(LINE, 2)],
        "wake": [[LINED_QUEUE] * batch, lines],
        "workers": [],
    }
    return values[name]


def _json(values: object) -> str:
    return msgspec.json.encode(values).decode()


def _traffic(batch: int) -> list[object]:
    """A third of the lines each is open, parked and closed; all gates are of every kind."""
    lines, gates, ones = ids_of(LINE, batch), ids_of(GATE, batch), [1] * batch
    parts = lines[::3], lines[1::3], lines[2::3]
    opened, parked, closed = ([part, ones[: len(part)]] for part in parts)
    of_gates = [gates, ones, gates, gates, ones, gates, ["[]"] * batch, ones, gates, ones]
    return [
        *opened,
        *parked,
        gates[: len(parts[1])],
        *closed,
        ones[: len(parts[2])],
        *of_gates,
        gates,
        ones,
        0,
        [LINED_QUEUE],
        LINED_QUEUE,
        10**6,
    ]


def _line(id: UUID) -> dict[str, object]:
    return {"id": id, "queue": LINED_QUEUE, "priority": 5, "gates": [id_of(GATE, 1)], "rule": "[]"}


def _saved(id: UUID) -> dict[str, object]:
    counters = ("attempt", "runs", "crashes", "waits", "pool_tries", "generation", "edits", "due_at")
    return {"id": id, "stage": 2, "lane": 0, "is_placed": True, "args": "{}"} | dict.fromkeys(counters, 0)


def _failure(id: UUID) -> dict[str, object]:
    return {"job": id, "run": 1, "generation": 0, "ended_at": 0, "kind": "error", "error_type": "E", "message": ""}


def _key(id: UUID, key: str) -> dict[str, object]:
    return {"task": TASK, "kind": 1, "key": key, "job": id}
