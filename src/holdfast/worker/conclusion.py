"""The end of a run that has a transaction open: its job is completed in it, or all of it is rolled back."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from holdfast.context import Context, Surroundings, TransactionalContext
from holdfast.engine import Engine
from holdfast.hooks import State
from holdfast.lifecycle import Complete
from holdfast.outcome import Completed, Outcome
from holdfast.store import Settled, Settlement
from holdfast.transaction import TaskTransaction
from holdfast.worker.runs import Run, outcome_of

log = logging.getLogger("holdfast.worker")


def transactional_context(run: Run, engine: Engine, state: State, surroundings: Surroundings) -> Context:
    """The context of a task that was declared with a transaction."""
    plan = run.plan
    transaction = TaskTransaction(engine, run.job.id, timedelta(seconds=plan.hard))
    return TransactionalContext(plan.name, run.job, state, surroundings, transaction)


def opened_by(run: Run) -> TaskTransaction | None:
    """The transaction that a task has left open, now that it is over. If it has opened none, it can't any more."""
    context = run.context
    if not isinstance(context, TransactionalContext):
        return None
    if context.tx.is_open:
        return context.tx
    context.tx.dismiss()
    return None


async def conclude(
    run: Run, transaction: TaskTransaction, value: Any, error: BaseException | None, now: datetime
) -> Outcome:
    """Commit what a task has written together with its completion, or roll it back if it has raised. Never raises.

    A run whose job was settled by this, or is not ours any more, `is_taken`: nobody needs to be told what came of it.
    """
    if error is None and not run.is_taken:
        try:
            result = run.plan.encode_result(value)
            job = run.job
            answer = await transaction.complete(
                Settlement(job.id, job.token, Complete(result), job.is_keyed, job.is_lined)
            )
        except BaseException as refusal:
            error = refusal
        else:
            run.is_taken = True
            run.is_committed = answer is not Settled.STALE
            if answer is Settled.STALE:
                log.warning("job %s is not ours any more: what it has written here was rolled back", job.id)
            return Completed(result)
    await transaction.roll_back()
    return Completed(None) if error is None else outcome_of(run, error, now)
