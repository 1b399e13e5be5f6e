"""Mistakes with breakers. Each checker must report each marked line, and no other."""

from holdfast import BreakerOpen, Holdfast

hf = Holdfast("memory://")
stripe = hf.breaker("stripe")


def plain(order_id: int) -> int:
    return order_id


def of_breakers() -> None:
    hf.breaker()  # error
    hf.breaker(5)  # error
    hf.breaker("a", 5)  # error
    hf.breaker("a", failures="5")  # error
    hf.breaker("a", reset=None)  # error
    hf.breaker("a", probes=1.5)  # error
    hf.breaker("a", on=ConnectionError)  # error
    hf.breaker("a", on=["ConnectionError"])  # error
    hf.breaker("a", ignore=[5])  # error
    hf.breaker("a", timeout="60s")  # error


def of_tasks() -> None:
    hf.task(breaker="stripe")(plain)  # error
    hf.task(breaker=hf)(plain)  # error
    hf.task(breakers=[stripe])(plain)  # error
    hf.task(breaker=stripe)(plain).enqueue("o1")  # error


async def of_steering() -> None:
    hf.breakers.reset()  # error
    hf.breakers.reset(stripe)  # error
    await hf.breakers.reset("stripe")  # error
    hf.breakers.open("stripe", span=[])  # error
    BreakerOpen("stripe").delay.upper()  # error
