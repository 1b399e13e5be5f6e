"""Every mistake in a URL is said with what to do about it, and never with the password."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from holdfast import Holdfast, HoldfastError, InvalidURL, StoreUnavailable
from holdfast.stores.postgres.address import Address
from tests.servers.account import Account
from tests.servers.certificate import make_certificate
from tests.servers.packages import NoServer
from tests.servers.port import free_port
from tests.servers.postgres import PostgresServer
from tests.servers.provision import give_up

SECRET = "sec/r:e?t#[50%] @+ü'\"\\"


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server that speaks TLS and asks for a password in which everything is special."""
    try:
        server = PostgresServer(auth="scram-sha-256", password=SECRET, with_tls=True)
    except NoServer as error:
        give_up(error)
    with server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that may be starting is waited for, but not here."""
    monkeypatch.setattr("holdfast.stores.postgres.office.PATIENCE", 0.0)


def use(url: str) -> None:
    with Holdfast(url) as hf:
        assert hf.jobs.count() == 0


def refusal(url: str, *secrets: str) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        use(url)
    told = "".join(traceback.format_exception(caught.value))
    for secret in (SECRET, quote(SECRET, safe=""), *secrets):
        assert secret not in told
    return caught.value


# ── what is right ────────────────────────────────────────────────────────────────────────────────────────────────────

GOOD: dict[str, Callable[[PostgresServer], str]] = {
    "as it should be": lambda server: server.url(),
    "the short scheme": lambda server: server.url().replace("postgresql:", "postgres:"),
    "encrypted": lambda server: server.url(sslmode="require"),
    "verified": lambda server: server.url(sslmode="verify-full", sslrootcert=str(server.certificate)),
    "by the host's name": lambda server: server.url().replace("127.0.0.1", "localhost"),
    "a socket": lambda server: server.socket_url(),
    "user and password as parameters": lambda server: (
        f"postgresql://127.0.0.1:{server.port}/postgres?user=postgres&password={quote(SECRET)}"
    ),
    "an @ in the password that is written as it is": lambda server: server.url().replace("%40", "@"),
    "several hosts, of which one answers": lambda server: server.url().replace(
        "@127.0.0.1:", f"@127.0.0.1:{free_port()},127.0.0.1:"
    ),
    "what other drivers know": lambda server: server.url(
        keepalives="1", gssencmode="disable", channel_binding="prefer"
    ),
    "settings of the server": lambda server: server.url(work_mem="8MB", application_name="shop", options="-c jit=off"),
    "all of ours": lambda server: server.url(pool_size="2", statement_timeout="1m", connect_timeout="5"),
}


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD.keys())
def test_a_good_url(guarded: PostgresServer, make: Callable[[PostgresServer], str]) -> None:
    use(make(guarded))


def test_tls_is_spoken_if_it_is_asked_for(guarded: PostgresServer) -> None:
    for mode, is_encrypted in (("disable", False), ("require", True)):
        with Holdfast(guarded.url(sslmode=mode, application_name=f"tls-{mode}")) as hf:
            hf.jobs.count()
            with psycopg.connect(guarded.url()) as connection:
                seen = connection.execute(
                    "select ssl from pg_stat_ssl join pg_stat_activity using (pid) where application_name = %s",
                    [f"tls-{mode}"],
                )
                assert seen.fetchall() == [(is_encrypted,)]


def test_settings_of_the_url_reach_the_session_and_ours_stay_in_force(guarded: PostgresServer) -> None:
    address = Address.parse(guarded.url(statement_timeout="7s", pool_size="3", connect_timeout="2"))
    assert (address.statement_timeout, address.pool_size, address.connect_timeout) == (7.0, 3, 2.0)
    assert "statement_timeout" not in address.url


def test_an_address_does_not_show_its_password(guarded: PostgresServer) -> None:
    address = Address.parse(guarded.url())
    assert SECRET not in repr(address)
    assert quote(SECRET, safe="") not in repr(address)
    assert quote(SECRET, safe="") not in repr(Holdfast(guarded.url()))


# ── what is wrong with the URL ───────────────────────────────────────────────────────────────────────────────────────

BAD: dict[str, tuple[str, str]] = {
    "a slash in the password": ("postgresql://me:xyzzy/plugh@host/shop", "This is not a URL.*with %"),
    "a question mark in the password": ("postgresql://me:xyzzy?plugh@host/shop", "This is not a URL.*with %"),
    "a hash in the password": ("postgresql://me:xyzzy#plugh@host/shop", "This is not a URL.*with %"),
    "a hash further on": ("postgresql://me:xyzzy@host/shop?sslmode=require#plugh", "%23"),
    "a bracket in the password": ("postgresql://me:xyzzy[plugh@host/shop", "This is not a URL.*with %"),
    "a character that looks like another": ("postgresql://me:xyzzy\u2100plugh@host/shop", "This is not a URL.*with %"),
    "no number as port": ("postgresql://me:xyzzy@host:port/shop", "This is not a URL.*host:5432"),
    "no port at all": ("postgresql://me:xyzzy@host:99999/shop", "This is not a URL.*host:5432"),
    "the driver of SQLAlchemy": ("postgresql+asyncpg://me:xyzzy@host/shop", r"'postgresql\+asyncpg://me:\*\*\*@host"),
    "no such mode of TLS": ("postgresql://me:xyzzy@host/shop?sslmode=yes", "verify-full"),
    "a pool without connections": ("postgresql://me:xyzzy@host/shop?pool_size=0", "from 2 to 1000"),
    "a pool of no number": ("postgresql://me:xyzzy@host/shop?pool_size=many", "from 2 to 1000"),
    "no time at all": ("postgresql://me:xyzzy@host/shop?connect_timeout=0", "such as 30s"),
    "no time": ("postgresql://me:xyzzy@host/shop?statement_timeout=soon", "such as 30s"),
    "a demand that can't be met": ("postgresql://me:xyzzy@host/shop?channel_binding=require", "sslmode=verify-full"),
}


@pytest.mark.parametrize(("url", "advice"), BAD.values(), ids=BAD.keys())
def test_a_bad_url_is_refused_before_anything_is_opened(url: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidURL, match=advice) as refused:
        Holdfast(url)
    monkeypatch.setenv("HOLDFAST_URL", url)
    with pytest.raises(InvalidURL, match=rf"^HOLDFAST_URL: .*{advice}") as from_environment:
        Holdfast()
    for error in (refused.value, from_environment.value):
        told = "".join(traceback.format_exception(error))
        assert "xyzzy" not in told
        assert "plugh" not in told


# ── what only the server can know ────────────────────────────────────────────────────────────────────────────────────


# Without TLS, because the driver leaves the end of an encrypted connection that was refused to a loop that is over.


def test_a_wrong_password(guarded: PostgresServer) -> None:
    error = refusal(guarded.url(user="postgres", password="wrong-secret", sslmode="disable"), "wrong-secret")
    assert isinstance(error, StoreUnavailable)
    assert "Check user and password" in str(error)
    assert f"127.0.0.1:{guarded.port}/postgres" in str(error)


def test_no_password(guarded: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    assert "Check user and password" in str(refusal(guarded.url(user="postgres", sslmode="disable")))


def test_a_database_that_is_not_there(guarded: PostgresServer) -> None:
    error = refusal(guarded.url("nowhere", sslmode="disable"))
    assert isinstance(error, StoreUnavailable)
    assert "does not exist. Create it, or correct the URL" in str(error)


def test_nobody_at_that_port(guarded: PostgresServer) -> None:
    port = free_port()
    error = refusal(guarded.url().replace(f":{guarded.port}/", f":{port}/"))
    assert isinstance(error, StoreUnavailable)
    assert f"127.0.0.1:{port}/postgres can't be reached" in str(error)
    assert "Check that the server runs, and the host and port" in str(error)


def test_a_host_that_has_no_address(guarded: PostgresServer) -> None:
    error = refusal(guarded.url().replace("127.0.0.1", "no-such-host.invalid"))
    assert isinstance(error, StoreUnavailable)
    assert "no-such-host.invalid" in str(error)
    assert "can't be reached" in str(error)


def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    error = refusal(f"postgresql://me:wrong-secret@/shop?host={quote(str(tmp_path), safe='')}", "wrong-secret")
    assert isinstance(error, StoreUnavailable)
    assert f"{tmp_path}/shop can't be reached" in str(error)


def test_tls_where_there_is_none(postgres_database: str) -> None:
    error = refusal(f"{postgres_database}?sslmode=require")
    assert isinstance(error, StoreUnavailable)
    assert "Check sslmode and certificates" in str(error)


def test_a_certificate_of_somebody_else(guarded: PostgresServer, tmp_path: Path) -> None:
    other, _ = make_certificate(tmp_path, Account.for_servers())
    error = refusal(guarded.url(sslmode="verify-full", sslrootcert=str(other)))
    assert isinstance(error, StoreUnavailable)
    assert "Check sslmode and certificates" in str(error)


def test_a_certificate_that_is_not_there(guarded: PostgresServer, tmp_path: Path) -> None:
    error = refusal(guarded.url(sslmode="verify-full", sslrootcert=str(tmp_path / "root.crt")))
    assert isinstance(error, InvalidURL)
    assert f"sslrootcert={tmp_path / 'root.crt'}, and there is no such file" in str(error)


def test_a_parameter_that_nobody_knows(guarded: PostgresServer) -> None:
    for params in ({"poolsize": "5"}, {"work_mem": "lots"}):
        error = refusal(guarded.url(**params, sslmode="disable"))
        assert isinstance(error, InvalidURL)
        assert min(params) in str(error)
