"""Mistakes in options and settings. Each checker must report each marked line, and no other."""

from datetime import datetime

from holdfast import Holdfast, Queue, Retention, Retry, TaskDefaults, Unique

hf = Holdfast("memory://")


@hf.task
async def send_receipt(order_id: int) -> str:
    return f"receipt-{order_id}"


def plain(order_id: int) -> int:
    return order_id


def of_tasks() -> None:
    hf.task(queu="q")(plain)  # error
    hf.task(delay="5m")(plain)  # error
    hf.task(queue=5)(plain)  # error
    hf.task(priority="urgent")(plain)  # error
    hf.task(priority=2.5)(plain)  # error
    hf.task(retry=5)(plain)  # error
    hf.task(timeout=None)(plain)  # error
    hf.task(expires=datetime.max)(plain)  # error
    hf.task(unique="{order_id}")(plain)  # error
    hf.task(delivery="exactly_once")(plain)  # error
    hf.task(aliases=[1])(plain)  # error
    hf.task(name=plain)  # error
    hf.task(bind="yes")(plain)  # error
    hf.task(plain, queue="q")  # error
    hf.task("plain")  # error
    hf.task(5)  # error


def of_jobs() -> None:
    send_receipt.options(dely="5m")  # error
    send_receipt.options(retry=Retry(5))  # error
    send_receipt.options(queue=5)  # error
    send_receipt.options(priority="urgent")  # error
    send_receipt.options(delay=datetime.max)  # error
    send_receipt.options(at=5)  # error
    send_receipt.options(expires=[])  # error
    send_receipt.options(idempotency_key=5)  # error
    send_receipt.options(tags=[1])  # error
    send_receipt.options(context=["a"])  # error
    send_receipt.options(context={1: "a"})  # error
    send_receipt.options(id=5)  # error
    send_receipt.options(wait=None)  # error
    send_receipt.options("5m")  # error


async def of_sending() -> None:
    hf.send("charge", dely="5m")  # error
    hf.send("charge", {"tenant": "acme"}, queue=5)  # error
    hf.send("charge", ["acme"])  # error
    hf.send("charge", tenant="acme")  # error
    hf.send(send_receipt)  # error
    hf.send()  # error
    await hf.asend("charge", dely="5m")  # error
    await hf.asend("charge", {1: "acme"})  # error
    await hf.asend("charge", {"tenant": "acme"}, tags=5)  # error


def of_the_app() -> None:
    Holdfast(url=5)  # error
    Holdfast("memory://", queue=[Queue("email")])  # error
    Holdfast("memory://", queues=["email"])  # error
    Holdfast("memory://", retention="1h")  # error
    Holdfast("memory://", work_limit=["1s"])  # error
    Holdfast("memory://", defaults={"queue": "q"})  # error
    Queue("email", bound="many")  # error
    Retention(complete="1h")  # error
    Retry("5")  # error
    Retry(5, on=[5])  # error
    Retry(5, on=ConnectionError)  # error
    TaskDefaults(bind=True)  # error
    TaskDefaults(priority="urgent")  # error
    Unique(5)  # error
    Unique("{order_id}", windw="5m")  # error


def of_namespaces() -> None:
    hf.jobs.count(tsk="charge")  # error
    hf.jobs.count(task=5)  # error
    hf.jobs.page(limit="5")  # error
    hf.jobs.page(args={"a": [1]})  # error
    hf.jobs.page(since="yesterday")  # error
    hf.jobs.cancel("charge")  # error
    hf.dead.retry(evrything=True)  # error
    hf.dead.discard(task=send_receipt)  # error
    hf.queues.bound("email")  # error
    hf.queues.pause(5)  # error
