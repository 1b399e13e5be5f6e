"""The bulletin of an isolated job: its progress on the way to the worker, the latest only, however often it reports."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from holdfast.worker.isolation import Progress

_EVERY: Final = 0.05
"""Seconds between two that are sent. The worker passes them on less often."""


class Bulletin:
    """Sends the first at once, then one now and then, and at last the latest. Whoever reports never waits."""

    def __init__(self, send: Callable[[Progress], None]) -> None:
        self._send = send
        self._latest: deque[Progress] = deque(maxlen=1)
        self._has_news = threading.Event()
        self._turn = threading.Lock()

    def report(self, progress: Progress) -> None:
        """From any thread, and as often as you like."""
        self._latest.append(progress)
        if not self._has_news.is_set():
            self._has_news.set()

    def flush(self) -> None:
        """Send what was reported so far and has not been sent."""
        with self._turn:
            if self._latest:
                self._send(self._latest.popleft())

    def start(self) -> None:
        """Send from now on, for as long as this process lives."""
        threading.Thread(target=self._serve, name="holdfast-bulletin", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._has_news.wait()
            self._has_news.clear()  # before looking: what is reported from now on wakes us again
            try:
                self.flush()
            except OSError:
                return  # the worker is gone, and this process ends
            time.sleep(_EVERY)
