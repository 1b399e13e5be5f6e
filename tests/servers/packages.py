"""Programs from the system's package manager, for machines that lack them."""

from __future__ import annotations

import os
import shutil
import subprocess

_APT = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]


class NoServer(Exception):
    """There is no program for this server, and none could be installed."""


def install(package: str) -> None:
    """Install a Debian package. Raises NoServer where that is impossible or not ours to do."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoServer(f"{package} is missing. Install it; on Debian or Ubuntu: apt-get install {package}")
    # The run level keeps the package's scripts from starting the system's own server, which nobody would stop.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in ([*_APT, "update"], [*_APT, "install", "-y", "--no-install-recommends", package]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NoServer(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
