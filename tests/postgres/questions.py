"""Something to ask with each statement of the store, about a batch of jobs of the crowd."""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec

from holdfast.stores.postgres.floors import LANES
from tests.postgres.crowd import LATER, QUEUE, TASK, TOKEN, WORKER, id_of, ids_of

_RETENTION = 1_000_000


def values_of(name: str, batch: int, floor: int = 0) -> list[object]:
    """The values of a statement, as the store would give them. They are right, so that there is something to do."""
    active, finished = ids_of(3, batch), ids_of(4, batch)
    keys = [str(number) for number in range(1, batch + 1)]
    values: dict[str, list[object]] = {
        "announced": [active, [0] * batch],
        "arrange_schedules": [None],
        "attempts": [finished[0]],
        "beat": [WORKER, None, True],
        "busy_queues": [],
        "circumstances": [[id_of(2, 1)], None, 10 * batch],
        "claim": [WORKER, uuid4(), [QUEUE], [batch], [floor] * LANES, None],
        "claimed": [WORKER, TOKEN],
        "close_keys": [active, 0, _RETENTION],
        "complete": [active, [TOKEN] * batch, ["null"] * batch, active, None, _RETENTION],
        "declare_dead": [[WORKER], [-1], None],
        "declare_queues": [[QUEUE], [5], [5]],
        "delete": [finished],
        "depart": [WORKER],
        "due_schedules": [None, batch],
        "empty": [[WORKER]],
        "end_work": [[WORKER]],
        "find_keys": [[TASK] * batch, [1] * batch, keys],
        "forget_schedule": [TASK],
        "held": [WORKER, active, LATER],
        "insert_jobs": [
            _json([{"id": str(uuid4()), "task": TASK, "queue": QUEUE, "args": "{}"} for _ in range(batch)]),
            None,
        ],
        "know_queues": [[QUEUE]],
        "known_jobs": [finished],
        "limits": [TASK, 1, "", batch, 10, None],
        "lock_active_of_worker": [WORKER],
        "lock_by_id": [finished],
        "lock_dead": [],
        "lock_expired": [None, batch],
        "lock_orphans": [[WORKER], batch],
        "lock_schedules": [[TASK]],
        "lock_workers": [[WORKER]],
        "nearly_full": [[QUEUE]],
        "next_due": [],
        "pause": [QUEUE, None],
        "progress": [finished],
        "prunable": [id_of(4, 500), id_of(5, 0), batch, LATER, LATER, None, LATER],
        "prune": [finished, LATER, LATER, None, LATER],
        "prune_keys": [LATER, batch],
        "prune_workers": [0],
        "publish_tasks": [["task"], ["{}"], None, None],
        "queues": [],
        "quiet": [WORKER],
        "record_failures": [_json([_failure(id) for id in active])],
        "record_ticks": [[TASK] * batch, list(range(batch)), finished],
        "recount": [QUEUE],
        "register": [uuid4(), "name", "host", 1, [QUEUE], None, True, [TASK]],
        "report_progress": [active, [TOKEN] * batch, [1.0] * batch, [2.0] * batch, [""] * batch, None],
        "resume": [QUEUE],
        "ripen": [None, batch],
        "save": [_json([_saved(id) for id in active])],
        "save_schedules": [[TASK], [1], [LATER], ["{}"]],
        "schedules": [[TASK]],
        "select_by_id": [finished],
        "select_finished": [finished],
        "select_unannounced": [batch],
        "set_bound": [QUEUE, 7],
        "sightings": [],
        "take_keys": [_json([_key(id, key) for id, key in zip(finished, keys, strict=True)]), LATER],
        "tasks": [],
        "tell_lock": [[WORKER], True, None],
        "ticks": [TASK, batch],
        "trim_history": [finished, 0],
        "trim_ticks": [[TASK], batch],
        "unfinished_ticks": [[TASK]],
        "workers": [],
    }
    return values[name]


def _json(values: object) -> str:
    return msgspec.json.encode(values).decode()


def _saved(id: UUID) -> dict[str, object]:
    counters = ("attempt", "runs", "crashes", "waits", "pool_tries", "generation", "edits", "due_at")
    return {"id": id, "stage": 2, "lane": 0, "is_placed": True, "args": "{}"} | dict.fromkeys(counters, 0)


def _failure(id: UUID) -> dict[str, object]:
    return {"job": id, "run": 1, "generation": 0, "ended_at": 0, "kind": "error", "error_type": "E", "message": ""}


def _key(id: UUID, key: str) -> dict[str, object]:
    return {"task": TASK, "kind": 1, "key": key, "job": id}
