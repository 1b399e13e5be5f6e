"""What a figure depends on: versions, settings, the machine."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.database import file_system, fresh
from holdfast.stores.sqlite.connection import Connection

_PRAGMAS = ("journal_mode", "synchronous", "cache_size", "page_size", "wal_autocheckpoint")


def describe(folder: Path) -> dict[str, Any]:
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "holdfast": version("holdfast"),
        "msgspec": version("msgspec"),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        "folder": str(folder),
        "file_system": file_system(folder),
        "durability": "enqueue and settle: synchronous=FULL; claims: NORMAL",
        "pragmas": _pragmas(folder),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _pragmas(folder: Path) -> dict[str, Any]:
    with fresh(folder) as path:
        connection = Connection(path)
        try:
            return {name: connection.execute(f"pragma {name}")[0][0] for name in _PRAGMAS}
        finally:
            connection.close()
