"""The typing of the public API: what is right is clean, and every planted mistake is seen, by mypy and by pyright."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = [HERE / "good.py", *sorted(HERE.glob("planted_*.py"))]
MARK = "  # error"

Errors = dict[str, dict[int, str]]
"""By file name: the lines with an error, and the first one there."""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 2 and more: it could not do its work
    return done.stdout


def check_with_mypy() -> Errors:
    # The cache is its own: another mypy, or another worker of pytest, may be writing to the project's.
    cache = ROOT / ".cache" / "mypy-typing"
    options = ["--strict", "--no-error-summary", "--show-absolute-path", f"--cache-dir={cache}", "--no-pretty"]
    output = run(sys.executable, "-m", "mypy", *options, *map(str, FILES))
    errors: Errors = {path.name: {} for path in FILES}
    for name, line, message in re.findall(r"^.*?([^/\\\n]+\.py):(\d+): error: (.*)$", output, re.MULTILINE):
        errors.setdefault(name, {}).setdefault(int(line), message)
    return errors


def check_with_pyright() -> Errors:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    report = json.loads(run(*command, *map(str, FILES)))
    errors: Errors = {path.name: {} for path in FILES}
    for found in report["generalDiagnostics"]:
        if found["severity"] == "error":
            name, line = os.path.basename(found["file"]), found["range"]["start"]["line"] + 1
            errors.setdefault(name, {}).setdefault(line, found["message"])
    assert report["summary"]["filesAnalyzed"] >= len(FILES)
    return errors


CHECKERS: dict[str, Callable[[], Errors]] = {"mypy": check_with_mypy, "pyright": check_with_pyright}


@pytest.fixture(scope="module", params=sorted(CHECKERS))
def errors(request: pytest.FixtureRequest) -> Errors:
    """All that one checker has to say about all files."""
    return CHECKERS[request.param]()


def marked_lines(path: Path) -> dict[int, str]:
    lines = enumerate(path.read_text().splitlines(), start=1)
    return {number: line.strip() for number, line in lines if line.endswith(MARK)}


@pytest.mark.xdist_group("typing")  # so that each checker runs once
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
class TestTypes:
    def test_no_line_is_refused_that_is_not_marked(self, errors: Errors, path: Path) -> None:
        marked = marked_lines(path)
        assert {line: message for line, message in errors[path.name].items() if line not in marked} == {}

    def test_every_marked_line_is_refused(self, errors: Errors, path: Path) -> None:
        found = errors[path.name]
        assert {line: code for line, code in marked_lines(path).items() if line not in found} == {}


@pytest.mark.xdist_group("typing")
def test_nothing_outside_these_files_is_refused(errors: Errors) -> None:
    assert set(errors) == {path.name for path in FILES}


def test_mistakes_are_planted_in_all_files_but_the_good_one() -> None:
    counts = {path.stem: len(marked_lines(path)) for path in FILES}
    assert counts.pop("good") == 0
    assert len(counts) >= 3
    assert all(count >= 5 for count in counts.values())
