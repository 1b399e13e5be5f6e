"""What a figure depends on: versions, settings, the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import loop
from benchmarks.disk import file_system
from benchmarks.site import Host


def describe(folder: Path, hosts: Sequence[Host]) -> dict[str, Any]:
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "loop": loop.NAME,
        "holdfast": version("holdfast"),
        "msgspec": version("msgspec"),
        "asyncpg": version("asyncpg"),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        "folder": str(folder),
        "file_system": file_system(folder),
        "stores": {host.name: host.describe() for host in hosts},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
