"""Mistakes with limits and explanations. Each checker must report each marked line, and no other."""

from holdfast import Holdfast

hf = Holdfast("memory://")


def of_limits() -> None:
    hf.limits.set("charge")  # error
    hf.limits.set("charge", "5")  # error
    hf.limits.set("charge", 5, kind="order")  # error
    hf.limits.set("charge", 5, tenant="acme")  # error
    hf.limits.reset("charge", "acme")  # error
    hf.limits.list(kind="speed")  # error
    hf.limits.list("charge", 5)  # error
    hf.limits.list()[0].limit  # error


def of_explanations() -> None:
    hf.jobs.explain()  # error
    hf.jobs.explain(17)  # error
    hf.job("x").explain().reason  # error
    hf.job("x").explain("x")  # error
