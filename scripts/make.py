"""The project's commands, behind the Makefile. Standard library only: it runs before anything is installed.

Whatever a command needs is made first: the virtual environment in `.venv`, with Holdfast in editable form and its
development tools. That happens again only when pyproject.toml changes, so a second run starts at once and needs no
network.
"""

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
BYTECODE = ROOT / ".cache" / "bytecode"
STAMP = VENV / "holdfast-setup"  # what the environment was made from; written when it is complete

OLDEST_PYTHON = (3, 11)
NO_TESTS_COLLECTED = 5  # pytest's exit status


def setup(_arguments: list[str]) -> int:
    """make .venv with Holdfast and its development tools"""
    made_from = STAMP.read_text().splitlines() if STAMP.exists() else []
    wanted = [interpreter(), dependencies()]
    if made_from == wanted:
        return 0
    say("setting up .venv")
    if made_from[:1] != wanted[:1]:
        make_environment()
    install()
    STAMP.write_text("\n".join(wanted))
    return 0


def test(arguments: list[str]) -> int:
    """run the tests; ARGS goes to pytest"""
    pytest = [str(PYTHON), "-m", "pytest"]
    if any(argument.startswith("-m") for argument in arguments):
        return run([*pytest, *arguments])  # the caller's choice of markers replaces ours
    parallel = run([*pytest, "-n", str(test_processes()), "--dist", "worksteal", "-m", "not serial", *arguments])
    alone = run([*pytest, "-m", "serial", *arguments])
    if parallel == alone == NO_TESTS_COLLECTED:
        return NO_TESTS_COLLECTED
    return max(0 if status == NO_TESTS_COLLECTED else status for status in (parallel, alone))


def crash(arguments: list[str]) -> int:
    """kill processes, for much longer than the tests do; ARGS goes to pytest"""
    os.environ["HOLDFAST_THOROUGH"] = "1"
    return run(
        [str(PYTHON), "-m", "pytest", "-p", "tests.crash.tally", "tests/crash", "tests/worker", "-ra", *arguments]
    )


def check(_arguments: list[str]) -> int:
    """formatting, lint, types, imports: all of them, also after a failure"""
    failed = [name for name, command in checks().items() if run(command) != 0]
    if failed:
        say(f"failed: {', '.join(failed)}")
        return 1
    say("all checks passed")
    return 0


def matrix(arguments: list[str]) -> int:
    """run the PostgreSQL tests against all its supported versions"""
    return run([str(PYTHON), str(ROOT / "scripts" / "postgres_versions.py"), *arguments])


def demo(arguments: list[str]) -> int:
    """a shop takes orders while everything around it fails, and nothing is lost; in under a minute"""
    return run([str(PYTHON), "examples/shop/demo.py", *arguments])


def bench(arguments: list[str]) -> int:
    """run the benchmarks; ARGS goes to them"""
    return run([str(PYTHON), "-m", "benchmarks", *arguments])


def format_(_arguments: list[str]) -> int:
    """format the code and repair what lint can repair"""
    lint = run([tool("ruff"), "check", "--fix", "."])
    return max(lint, run([tool("ruff"), "format", "."]))


def clean(_arguments: list[str]) -> int:
    """remove what these commands made, .venv included"""
    for name in (".venv", ".cache", ".hypothesis", "build", "dist"):
        shutil.rmtree(ROOT / name, ignore_errors=True)
    for folder in ("src", "tests", "benchmarks", "examples", "scripts"):
        for cache in list((ROOT / folder).rglob("__pycache__")):
            shutil.rmtree(cache, ignore_errors=True)
    return 0


def help_(_arguments: list[str]) -> int:
    """list the commands"""
    for name, command in COMMANDS.items():
        print(f"  make {name:<8}{command.__doc__}")
    print('\nExtra arguments: make test ARGS="-k claim -x"')
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "help": help_,
    "setup": setup,
    "demo": demo,
    "test": test,
    "crash": crash,
    "check": check,
    "matrix": matrix,
    "bench": bench,
    "format": format_,
    "clean": clean,
}
NEEDS_ENVIRONMENT = {"demo", "test", "crash", "check", "matrix", "bench", "format"}


def checks() -> dict[str, list[str]]:
    return {
        "format": [tool("ruff"), "format", "--check", "."],
        "lint": [tool("ruff"), "check", "."],
        "mypy": [tool("mypy")],
        "pyright": [tool("pyright")],
        "imports": [tool("lint-imports"), "--no-logo", "--cache-dir", ".cache/import-linter"],
    }


def test_processes() -> int:
    """More than there are processors, because many tests mostly wait; eight at most, because they start their own."""
    return min(max((os.cpu_count() or 1) * 3 // 2, 2), 8)


def interpreter() -> str:
    """An environment is tied to one Python and one folder: a copy of it would still point to the original."""
    return f"{'.'.join(map(str, sys.version_info[:3]))} {ROOT}"


def dependencies() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()


def make_environment() -> None:
    """Make an empty .venv that has uv.

    Debian ships Python without ensurepip, which venv needs to put pip into an environment. The system's pip can
    reach into the environment from outside just as well, and where that is missing too, root may install it.
    """
    if Path(sys.prefix).resolve() == VENV:
        sys.exit("make: .venv must be made anew, but this Python runs from it; deactivate it first")
    shutil.rmtree(VENV, ignore_errors=True)
    if not available("ensurepip") and not available("pip"):
        install_ensurepip()
    if available("ensurepip"):
        must_run([sys.executable, "-m", "venv", str(VENV)])
        pip = [str(PYTHON), "-m", "pip"]
    else:
        must_run([sys.executable, "-m", "venv", "--without-pip", str(VENV)])
        pip = [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    must_run([*pip, "install", "--quiet", "--disable-pip-version-check", "uv"])


def install_ensurepip() -> None:
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if not is_root or shutil.which("apt-get") is None:
        sys.exit("This Python can make no virtual environments. On Debian or Ubuntu: apt-get install python3-venv")
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]
    must_run([*apt, "update"])
    must_run([*apt, "install", "-y", "--no-install-recommends", "python3-venv"])
    importlib.invalidate_caches()


def install() -> None:
    requirements = ["-e", ".[dev]"]
    if shutil.which("node") is None:
        requirements.append("pyright[nodejs]")  # pyright runs on node; this brings one along
    home = os.path.expanduser("~") or os.sep
    cache = [] if os.access(home, os.W_OK) else ["--no-cache"]
    # The certificates of the system, as pip uses them: behind a company's proxy, uv's own don't do.
    os.environ.setdefault("UV_SYSTEM_CERTS", "1")
    must_run([tool("uv"), "pip", "install", "--quiet", *cache, "--python", str(PYTHON), *requirements])


def available(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def tool(name: str) -> str:
    return str(BIN / name)


def say(message: str) -> None:
    print(f"── {message}", flush=True)


def run(command: list[str]) -> int:
    """Run a command in the project's folder, as if .venv were activated, and return its exit status."""
    shown = [str(Path(command[0]).name), *command[1:]]
    say(shlex.join(shown))
    environment = os.environ | {"VIRTUAL_ENV": str(VENV), "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    environment.pop("PYTHONHOME", None)
    # Containers tell Python to keep no bytecode. Then each process that a test starts compiles everything it imports,
    # which takes longer than most tests; so it is kept where it is in nobody's way.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    return status if status >= 0 else 128 - status  # ended by a signal: what a shell would say


def must_run(command: list[str]) -> None:
    status = run(command)
    if status != 0:
        sys.exit(f"make: {shlex.join(command)} failed with status {status}")


def main(arguments: list[str]) -> int:
    if sys.version_info < OLDEST_PYTHON:
        sys.exit("Holdfast needs Python 3.11 or newer; choose one with: make PYTHON=python3.11 …")
    name, *rest = arguments or ["help"]
    if name not in COMMANDS:
        print(f"There is no command {name!r}.\n", file=sys.stderr)
        help_([])
        return 2
    if name in NEEDS_ENVIRONMENT:
        setup([])
    try:
        return COMMANDS[name](rest)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
