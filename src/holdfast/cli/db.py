"""`holdfast db`: the tables, for those who own the database."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from holdfast.app import find_installation
from holdfast.cli.status import Status
from holdfast.cli.target import App, Url, chosen_installation, chosen_url
from holdfast.cli.terminal import AsJson, show, show_json, tell
from holdfast.errors import SchemaTooNew
from holdfast.installation import Finding, Report, Severity, judge_schema

commands = typer.Typer(help="Make, upgrade and check Holdfast's tables.", no_args_is_help=True, rich_markup_mode=None)

_MARKS = {Severity.WRONG: ("✗", "bold red"), Severity.WARNING: ("!", "bold yellow"), Severity.NOTE: ("·", "bold blue")}


@commands.command()
def migrate(
    app: App = None,
    url: Url = None,
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the tables up to date, or make them.

    Safe at any time, and for several processes at once; jobs go on meanwhile.
    """
    installation = chosen_installation(app, url)
    before = asyncio.run(installation.schema())
    needed = installation.steps[-1].number
    if is_dry_run:
        if (before or 0) > needed:
            finding = judge_schema(before or 0, needed)
            raise SchemaTooNew(f"{finding.problem} {finding.advice}")
        steps = [step for step in installation.steps if step.number > (before or 0)]
    else:
        steps = list(asyncio.run(installation.migrate(tell)))
    if as_json:
        show_json(
            {
                "database": installation.place,
                "is_dry_run": is_dry_run,
                "schema_before": before,
                "schema": before if is_dry_run else needed,
                "needed": needed,
                "migrations": steps,
            }
        )
        return
    tell(installation.place)
    if before is None:
        show("would create the file" if is_dry_run else "created the file")
    for step in steps:
        show("would apply " if is_dry_run else "applied ", (str(step), "bold"))
    if not steps:
        show("up to date: ", (f"schema {before or 0}", "bold"))


@commands.command()
def sql(
    app: App = None,
    url: Url = None,
    after: Annotated[int, typer.Option("--from", min=0, metavar="N", help="Only what comes after schema N.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the SQL that makes the tables, for a DBA to run with psql.

    It is for PostgreSQL unless an app or a URL says otherwise. Nothing is connected to.
    """
    installation = find_installation(chosen_url(app, url) or "postgresql://")
    newest = installation.steps[-1].number
    if after > newest:
        raise typer.BadParameter(f"This version of Holdfast knows schemas up to {newest}.", param_hint="--from")
    text = installation.script(after)
    if as_json:
        show_json({"from": after, "schema": newest, "sql": text})
    else:
        typer.echo(text, nl=False)


@commands.command()
def check(app: App = None, url: Url = None, as_json: AsJson = False) -> None:
    """Compare the tables, the role's rights and the server's settings with what is needed.

    Nothing is changed. Ends with status 1 if something is wrong.
    """
    installation = chosen_installation(app, url)
    report = asyncio.run(installation.check())
    if as_json:
        show_json(
            {
                "database": installation.place,
                "server": report.server,
                "schema": report.schema,
                "needed": report.needed,
                "is_good": report.is_good,
                "findings": report.findings,
            }
        )
    else:
        tell(f"{installation.place}, {report.server}")
        _show(report)
    if not report.is_good:
        raise typer.Exit(Status.FAILED)


def _show(report: Report) -> None:
    for finding in report.findings:
        _show_finding(finding)
    number = sum(finding.severity is Severity.WRONG for finding in report.findings)
    if number:
        show((f"{number} {'thing is' if number == 1 else 'things are'} wrong", "bold red"))
    else:
        show(("✓", "bold green"), f" schema {report.schema} is as it should be")


def _show_finding(finding: Finding) -> None:
    mark, style = _MARKS[finding.severity]
    show((mark, style), f" {finding.problem}")
    show(("  → ", "dim"), finding.advice)
