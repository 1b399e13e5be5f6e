"""What the processes do that the tests start, by name."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import signal
import traceback
from typing import Any, Final, NoReturn

from tests.crash import claiming, completing, forking, opening, producing, scheduling, waiting, working
from tests.crash.line import Gone, Line

_LONGEST_LIFE: Final = 600
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_PTRACER: Final = 0x59616D61
_libc = ctypes.CDLL(None, use_errno=True)


def perform(line: Line, verb: str, options: dict[str, Any]) -> NoReturn:
    """Do it, and end the process. It ends in any case with the process it was forked from."""
    signal.alarm(_LONGEST_LIFE)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)  # strace may look at it, also when it is not root's
    (function,) = (getattr(module, verb) for module in _MODULES if hasattr(module, verb))
    try:
        acting = function(line, **options)
        if inspect.iscoroutine(acting):
            asyncio.run(acting)
    except Gone:
        os._exit(0)
    except SystemExit:
        raise  # it wants to end as Python programs do
    except BaseException:
        line.say("failed", trace=traceback.format_exc())
        os._exit(1)
    os._exit(0)


_MODULES: Final = (claiming, completing, forking, opening, producing, scheduling, waiting, working)
