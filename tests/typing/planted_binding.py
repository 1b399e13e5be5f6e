"""Mistakes in declaring bound tasks. Each checker must report each marked line, and no other."""

from holdfast import AsyncTask, Context, Holdfast, SyncTask

hf = Holdfast("memory://")


@hf.task(bind=True)  # error
def without_parameters() -> None: ...


@hf.task(bind=True)  # error
def without_context(order_id: int) -> None: ...


@hf.task(bind=True)  # error
async def context_second(order_id: int, ctx: Context) -> None: ...


@hf.task(bind=True)  # error
async def context_by_name(*, ctx: Context) -> None: ...


@hf.task(bind=True)
async def charge(ctx: Context, tenant: str) -> str:
    ctx.atempt  # error
    return tenant


@hf.task
async def send_receipt(order_id: int) -> str:
    return f"receipt-{order_id}"


hidden: AsyncTask[[Context, str], str] = charge  # error
other_kind: SyncTask[[int], str] = send_receipt  # error
other_result: AsyncTask[[int], int] = send_receipt  # error
other_arguments: AsyncTask[[str], str] = send_receipt  # error
