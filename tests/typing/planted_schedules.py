"""Mistakes with schedules. Each checker must report each marked line, and no other."""

from datetime import datetime

from holdfast import Context, Holdfast

hf = Holdfast("memory://")


def plain(order_id: int = 0) -> int:
    return order_id


def bound(ctx: Context, order_id: int = 0) -> int:
    return order_id


def of_decorators() -> None:
    hf.cron(5)(plain)  # error
    hf.cron("0 9 * * *", timezone="UTC")(plain)  # error
    hf.cron("0 9 * * *", tz=5)(plain)  # error
    hf.cron("0 9 * * *", catchup="twice")(plain)  # error
    hf.cron("0 9 * * *", overlap=True)(plain)  # error
    hf.cron("0 9 * * *", minutes=5)(plain)  # error
    hf.every(minute=5)(plain)  # error
    hf.every(minutes="5")(plain)  # error
    hf.every("5m", args=["x"])(plain)  # error
    hf.at(5)(plain)  # error
    hf.at(datetime.max, every="5m")(plain)  # error
    hf.every("5m")(5)  # error


def of_tasks() -> None:
    hf.every("5m")(plain).enqueue("one")  # error
    hf.every("5m")(hf.task(plain)).enqueue(other=1)  # error
    hf.every("5m", bind=True)(bound).enqueue("one")  # error


def at_run_time() -> None:
    hf.schedules.add("a")  # error
    hf.schedules.add("a", plain, every="5m")  # error
    hf.schedules.add("a", "plain", evry="5m")  # error
    hf.schedules.add("a", "plain", every="5m", catchup="twice")  # error
    hf.schedules.change("a", task="other")  # error
    hf.schedules.next("a", "5")  # error
