"""A certificate for a server on this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.servers.account import Account
from tests.servers.packages import NoServer


def make_certificate(folder: Path, account: Account) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and 127.0.0.1, and its key, which only this user can read."""
    if shutil.which("openssl") is None:
        raise NoServer("TLS needs the program openssl for a certificate. Install it.")
    certificate, key = folder / "server.crt", folder / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-out", certificate, "-keyout", key], capture_output=True, check=True)
    key.chmod(0o600)
    for path in (certificate, key):
        account.own(path)
    return certificate, key
