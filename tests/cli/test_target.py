"""An app or a URL, named on the command line or in the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def _forget_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported here is gone afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("shop", "several", "broken", "needy", "pack", "pack.jobs", "more_tasks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def shop(folder: Path) -> Path:
    """A module with one app."""
    (folder / "shop.py").write_text("from holdfast import Holdfast\nhf = Holdfast('sqlite:///shop.db')\nother = hf\n")
    return folder


@pytest.mark.parametrize("app", ["shop", "shop:hf", "shop:other"])
def test_an_app_is_named_with_its_module(run: Run, shop: Path, app: str) -> None:
    assert run("db", "migrate", "--app", app).status == 0
    assert (shop / "shop.db").exists()


def test_an_app_without_a_url_of_its_own_follows_the_environment(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "shop.py").write_text("from holdfast import Holdfast\nhf = Holdfast()\n")
    monkeypatch.setenv("HOLDFAST_APP", "shop:hf")
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///from-environment.db")
    assert run("db", "migrate").status == 0
    assert (folder / "from-environment.db").exists()


def test_what_stands_on_the_command_line_goes_before_the_environment(
    run: Run, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_APP", "nowhere")
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///wrong.db")
    assert run("db", "migrate", "--url", "sqlite:///right.db").status == 0
    assert run("db", "migrate", "--app", "shop").status == 0
    assert {path.name for path in shop.glob("*.db")} == {"right.db", "shop.db"}


def test_without_anything_it_is_the_file_that_an_app_without_a_url_uses(run: Run, folder: Path) -> None:
    assert run("db", "migrate").status == 0
    assert (folder / "holdfast.db").exists()


def test_the_modules_that_an_app_names_are_imported_with_it(run: Run, folder: Path) -> None:
    (folder / "shop.py").write_text(
        "from holdfast import Holdfast\nhf = Holdfast('memory://', imports=['more_tasks'])\n"
    )
    (folder / "more_tasks.py").write_text("raise RuntimeError('imported')")
    ran = run("db", "check", "--app", "shop")
    assert ran.status == 1
    assert "more_tasks can't be imported: RuntimeError: imported" in ran.err


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("nowhere", "There is no module 'nowhere'"),
        ("pack.nowhere", "There is no module 'pack.nowhere'"),
        ("shop:nope", "The module shop has no attribute 'nope'. Name one of them: shop:hf, shop:other."),
        ("json:nope", "The module json has no attribute 'nope'.\n"),
        ("shop:hf.nope", "hf has no attribute 'nope'. Name one of them: shop:hf, shop:other."),
        ("shop:Holdfast", "shop:Holdfast is a type, not a Holdfast app."),
        ("shop:", "'shop:' is not MODULE or MODULE:NAME"),
        (":hf", "':hf' is not MODULE or MODULE:NAME"),
        ("several", "The module several has several Holdfast apps. Name one of them: several:one, several:two."),
        ("json", "The module json has no Holdfast app."),
    ],
)
def test_a_name_that_leads_to_no_app_is_explained(run: Run, shop: Path, app: str, message: str) -> None:
    (shop / "several.py").write_text(
        "from holdfast import Holdfast\none = Holdfast('memory://')\ntwo = Holdfast('memory://')\n"
    )
    (shop / "pack").mkdir()
    (shop / "pack" / "__init__.py").touch()
    ran = run("db", "check", "--app", app)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err


def test_an_app_that_fails_to_import_shows_where(run: Run, folder: Path) -> None:
    (folder / "broken.py").write_text("def fail():\n    return 1 / 0\n\nfail()\n")
    (folder / "needy.py").write_text("import not_installed_anywhere\n")
    ran = run("db", "check", "--app", "broken")
    assert (ran.status, ran.out) == (1, "")
    assert f'File "{folder}/broken.py", line 2, in fail' in ran.err
    assert "importlib" not in ran.err
    assert "broken can't be imported: ZeroDivisionError: division by zero" in ran.err
    ran = run("db", "check", "--app", "needy")
    assert ran.status == 1
    assert "needy can't be imported: ModuleNotFoundError: No module named 'not_installed_anywhere'" in ran.err


def test_an_app_and_a_url_at_once_are_refused(run: Run, shop: Path) -> None:
    ran = run("db", "check", "--app", "shop", "--url", "sqlite:///x.db")
    assert ran.status == 2
    assert "Name an app or a URL, not both." in ran.err


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("memory://", 2),
        ("mysql://user:s3cret@host/db", 2),
        ("", 2),
        ("postgresql://user:s3cret@127.0.0.1:1/db", 4),
        ("postgresql://user:s3cret@127.0.0.1:1/db?password=s3cret", 4),
        ("postgresql://user@127.0.0.1:1/db?password=s3cret&sslmode=wrong", 2),
        ("postgresql://user:pa@ss:s3cret/word@127.0.0.1:1/db", 2),
        ("postgresql://user:pa?s3cret@127.0.0.1:1/db", 2),
        ("postgresql://user:pa#s3cret@127.0.0.1:1/db", 2),
        ("postgresql://user:s3cret[@127.0.0.1:1/db", 2),
        ("postgresql://user:s3cret℀@127.0.0.1:1/db", 2),
        ("user:s3cret@127.0.0.1/db", 2),
        ("mysql://user:pa?s3cret@127.0.0.1:1/db", 2),
        ("sqlite://user:s3cret@host/x.db", 2),
    ],
)
@pytest.mark.parametrize("command", [["check"], ["migrate"], ["migrate", "--dry-run", "--json"]])
def test_no_secret_is_ever_printed(run: Run, folder: Path, url: str, status: int, command: list[str]) -> None:
    ran = run("db", *command, "--url", url)
    assert (ran.status, ran.out) == (status, ""), ran.err
    assert "s3cret" not in ran.err
    assert list(folder.iterdir()) == []
