"""The app of workers that are to look after the database, too. Its handler writes down what it is told."""

from __future__ import annotations

from holdfast import DeadJob, Holdfast, Retention, Retry
from tests.worker.history import here


def make_app(url: str | None = None) -> Holdfast:
    hf = Holdfast(url, retention=Retention(completed="10ms"))

    @hf.task
    async def work() -> None: ...

    @hf.task(retry=Retry(1))
    async def doomed(order: int) -> None:
        raise ValueError("planned")

    @doomed.on_dead
    async def mourn(job: DeadJob) -> None:
        here().write("mourned", job=job.id, note=f"{job.args['order']}: {job.error}")

    return hf


hf = make_app()
