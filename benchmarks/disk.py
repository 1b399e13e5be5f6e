"""Whether figures from a folder say anything about disks."""

from __future__ import annotations

from pathlib import Path

_IN_MEMORY = ("tmpfs", "ramfs")


def file_system(folder: Path) -> str:
    """The file system that a folder is on, from /proc/mounts; empty where there is none."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    above = {str(folder.resolve()), *(str(parent) for parent in folder.resolve().parents)}
    found = [(len(mount[1]), mount[2]) for mount in mounts if mount[1] in above]
    return max(found)[1] if found else ""


def is_real_disk(folder: Path) -> bool:
    return file_system(folder) not in _IN_MEMORY
