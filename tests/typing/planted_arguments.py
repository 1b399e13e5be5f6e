"""Mistakes in calls and in what is done with them. Each checker must report each marked line, and no other."""

from holdfast import Call, Context, Holdfast, Job

hf = Holdfast("memory://")


@hf.task
async def send_receipt(order_id: int) -> str:
    return f"receipt-{order_id}"


@hf.task
def resize(url: str, size: int = 100, *, crop: bool = False) -> int:
    return size if crop else len(url)


@hf.task(queue="billing")
async def refund(order_id: int) -> float:
    return order_id / 2


@hf.task(bind=True)
async def charge(ctx: Context, tenant: str, cents: int = 0) -> str:
    return tenant * cents


@hf.task(bind=True, queue="media")
def shrink(ctx: Context, url: str) -> int:
    return len(url)


def enqueue(ctx: Context) -> None:
    send_receipt.enqueue("1")  # error
    send_receipt.enqueue()  # error
    send_receipt.enqueue(1, 2)  # error
    send_receipt.enqueue(order=1)  # error
    send_receipt.enqueue(1, order_id=1)  # error
    resize.enqueue("u", "100")  # error
    resize.enqueue("u", 100, True)  # error
    resize.enqueue("u", corp=True)  # error
    refund.enqueue(None)  # error
    charge.enqueue(5)  # error
    charge.enqueue()  # error
    charge.enqueue(ctx, "acme")  # error
    charge.enqueue(ctx=ctx, tenant="acme")  # error
    shrink.enqueue(ctx, "u")  # error
    shrink.enqueue("u", "v")  # error


async def aenqueue(ctx: Context) -> None:
    await send_receipt.aenqueue("1")  # error
    await send_receipt.aenqueue()  # error
    await send_receipt.aenqueue(1, size=2)  # error
    await resize.aenqueue(1)  # error
    await charge.aenqueue("acme", "5")  # error
    await charge.aenqueue(ctx, "acme")  # error
    await shrink.aenqueue()  # error
    send_receipt.aenqueue(1)  # error
    hf.aenqueue_many([send_receipt.call(1)])  # error
    await send_receipt.enqueue(1)  # error


def options_and_call(ctx: Context) -> None:
    send_receipt.options(delay="5m").enqueue("1")  # error
    send_receipt.options(delay="5m").enqueue()  # error
    resize.options(delay="5m").enqueue("u", wait="5s")  # error
    charge.options(delay="5m").enqueue(ctx, "acme")  # error
    send_receipt.call("1")  # error
    send_receipt.call()  # error
    shrink.call(ctx, "u")  # error
    refund.options(delay="5m").call(order=1)  # error


async def call_here(ctx: Context) -> None:
    await send_receipt("1")  # error
    send_receipt()  # error
    resize(1)  # error
    await resize("u")  # error
    await charge(ctx, "acme")  # error
    shrink(ctx, "u")  # error
    shrink()  # error
    text: str = send_receipt(1)  # error
    number: int = await charge("acme")  # error
    other: str = resize("u")  # error
    print(text, number, other)


async def results() -> None:
    a: int = send_receipt.enqueue(1).result()  # error
    b: str = await refund.job("…").aresult()  # error
    c: str = shrink.job("…").result(timeout="1s")  # error
    d: Job[int] = send_receipt.enqueue(1)  # error
    e: Job[int] = send_receipt.job("…")  # error
    f: str = send_receipt.job("…").aresult()  # error
    g: Call[int] = send_receipt.call(1)  # error
    send_receipt.job(5)  # error
    hf.job(5)  # error
    send_receipt.enqueue(1).result(timeout=[])  # error
    send_receipt.enqueue(1).result().real  # error
    send_receipt.enqueue(1).retry([1])  # error
    send_receipt.enqueue(1).reslut()  # error
    print(a, b, c, d, e, f, g)


def many() -> None:
    a: list[Job[int]] = hf.enqueue_many([send_receipt.call(1)])  # error
    hf.enqueue_many([send_receipt.call(1)])[0].result().real  # error
    hf.enqueue_many([send_receipt])  # error
    hf.enqueue_many(send_receipt.call(1))  # error
    hf.enqueue_many([send_receipt.enqueue(1)])  # error
    hf.enqueue_many([send_receipt.options(delay=1)])  # error
    hf.enqueue_many([send_receipt.call(1)], delay=1)  # error
    print(a)
