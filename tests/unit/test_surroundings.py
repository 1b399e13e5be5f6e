"""What is said about a server that no test can bring up here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.installation import Severity
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.surroundings import Surroundings

GOOD = Surroundings(
    version="13.0",
    fsync="on",
    full_page_writes="on",
    synchronous_commit="on",
    encoding="UTF8",
    read_only="off",
    is_standby=False,
    role="app",
    quoted_role="app",
    most_connections=12,
    has_plpgsql=True,
    has_schema=True,
)


def _judge(surroundings: Surroundings, *, is_pooled: bool = False) -> list[tuple[Severity, str]]:
    found = surroundings.judge(Address("postgresql://"), is_pooled=is_pooled)
    return [(finding.severity, finding.problem) for finding in found]


@pytest.mark.parametrize("version", ["13.0", "13.23 (Debian 13.23-1.pgdg12+1)", "19beta1", "20devel"])
def test_nothing_is_said_about_a_good_server(version: str) -> None:
    assert _judge(replace(GOOD, version=version)) == []


@pytest.mark.parametrize("version", ["12.22", "9.6.24", "12.22 (Ubuntu 12.22-0ubuntu0.20.04.4)"])
def test_an_old_server_is_refused(version: str) -> None:
    assert _judge(replace(GOOD, version=version)) == [(Severity.WRONG, f"PostgreSQL {version} is too old.")]


def test_a_standby_takes_no_writes() -> None:
    assert _judge(replace(GOOD, is_standby=True, read_only="on")) == [
        (Severity.WRONG, "This server is a standby: it takes no writes.")
    ]


def test_one_process_needs_its_pool_a_listener_and_a_reserved_connection() -> None:
    ((severity, problem),) = _judge(replace(GOOD, most_connections=11))
    assert severity is Severity.WRONG
    assert problem == "One process may open 12 connections (pool_size 10, and 2 besides), and the server gives app 11."


def test_behind_a_pooler_the_number_of_connections_is_the_poolers_business() -> None:
    ((severity, _),) = _judge(replace(GOOD, most_connections=3), is_pooled=True)
    assert severity is Severity.NOTE
