"""A web application as gunicorn serves it.

`/result/7` and `/id/7` enqueue 7 and answer with the worker's pid and the job's result or id. `/ready/7` only answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from holdfast import Holdfast

hf = Holdfast()


@hf.task
def echo(n: int) -> int:
    return n


# With --preload this runs in the master, so every worker is a fork of a process that has used the app.
echo.enqueue(-os.getpid())


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    verb, n = environ["PATH_INFO"].strip("/").split("/")
    match verb:
        case "result":
            answer = str(echo.enqueue(int(n)).result("30s"))
        case "id":
            answer = str(echo.enqueue(int(n)).id)
        case _:
            answer = n
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {answer}".encode()]
