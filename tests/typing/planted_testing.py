"""Mistakes in tests of jobs. Each checker must report each marked line, and no other."""

from holdfast import Context, Holdfast, Job

hf = Holdfast("memory://")


@hf.task
async def send_receipt(order_id: int) -> str:
    return f"receipt-{order_id}"


@hf.task
def resize(url: str, size: int = 100, *, crop: bool = False) -> int:
    return size if crop else len(url)


@hf.task(bind=True)
async def charge(ctx: Context, tenant: str, cents: int = 0) -> str:
    return tenant * cents


def expecting(ctx: Context) -> None:
    with hf.testing() as t:
        t.assert_enqueued(send_receipt, "1")  # error
        t.assert_enqueued(send_receipt)  # error
        t.assert_enqueued(send_receipt, 1, 2)  # error
        t.assert_enqueued(send_receipt, order=1)  # error
        t.assert_enqueued(resize, "u", "100")  # error
        t.assert_enqueued(resize, "u", 100, True)  # error
        t.assert_enqueued(charge, ctx, "acme")  # error
        t.assert_enqueued(charge, "acme", "5")  # error
        t.assert_enqueued(send_receipt.function, 1).missing  # error
        t.assert_enqueued("send_receipt", 1)  # error
        t.assert_not_enqueued("send_receipt")  # error
        a: list[Job[int]] = t.jobs(send_receipt)  # error
        print(a)


def running() -> None:
    with hf.testing() as t:
        t.crash_worker("at_noon")  # error
        t.crash_worker()  # error
        t.advance([])  # error
        t.run_all(5)  # error
        t.run_all().result()  # error
        t.run_al()  # error


async def running_async() -> None:
    async with hf.testing(inline="yes") as t:  # error
        t.arun_all()  # error
        await t.run_all()  # error
    hf.testing(5)  # error
    hf.testing(iline=True)  # error
