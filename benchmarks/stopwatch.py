"""Time, and CPU time, which is less disturbed by whatever else the machine does."""

from __future__ import annotations

import time
from typing import Final, Self

from benchmarks.site import Sample, Site

RATE: Final = ("jobs/s", "cpu us/job", "server us/job")


class Stopwatch:
    """Times a block: this process, and the server of the site if it has one."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __enter__(self) -> Self:
        self._server = self._site.server_cpu()
        self._cpu = time.process_time()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self.cpu_seconds = time.process_time() - self._cpu
        server = self._site.server_cpu()
        self.server_seconds = None if server is None or self._server is None else server - self._server

    def rate(self, jobs: int) -> Sample:
        """Jobs per second, and what each cost of CPU time: the RATE figures."""
        sample = {"jobs/s": jobs / self.seconds, "cpu us/job": self.cpu_seconds / jobs * 1e6}
        if self.server_seconds is not None:
            sample["server us/job"] = self.server_seconds / jobs * 1e6
        return sample
