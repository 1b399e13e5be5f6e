"""Where the database is: a URL, checked without connecting."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from holdfast.errors import InvalidURL
from holdfast.span import parse_span

_TLS_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_EXAMPLE: Final = "postgresql://user:password@host:5432/database"
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_IGNORED: Final = (
    "channel_binding", "gssencmode", "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval",
    "tcp_user_timeout",
)  # fmt: skip
"""Parameters of libpq that providers put into their URLs, and that the driver would take for settings of the server."""


@dataclass(frozen=True)
class Address:
    """A database, and how to talk to it.

    `pool_size`, `statement_timeout` and `connect_timeout` are parameters of the URL; all others go to the driver, which
    knows those of libpq: `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `application_name`, `passfile`, `host` …
    """

    url: str = field(repr=False)
    """For the driver: without the parameters that are ours."""
    pool_size: int = 10
    """Connections at most, for each event loop; a listener and a worker's own one come on top."""
    statement_timeout: float = 30.0
    connect_timeout: float = 10.0
    place: str = ""
    """Host, port and database, for messages."""
    files: tuple[tuple[str, str], ...] = ()
    """Certificates and keys: parameter and path."""

    def check_files(self) -> None:
        """Say which file is missing; the driver only says that one is."""
        for name, path in self.files:
            if not os.path.exists(path):
                raise InvalidURL(f"The URL says {name}={path}, and there is no such file. Correct it.")

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            login, _, hosts = parts.netloc.rpartition("@")
            for host in hosts.split(","):
                _ = urlsplit(f"//{host}").port
            parameters = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError:
            # What Python says may have the password in it.
            raise InvalidURL(
                f"This is not a URL. Write {_EXAMPLE}, and what is special in a password with %, such as %40 for @."
            ) from None
        if parts.scheme not in ("postgresql", "postgres"):
            raise InvalidURL(f"{parts.scheme}:// is not known here. Write {_EXAMPLE}.")
        if parts.fragment:
            raise InvalidURL("The URL has a '#' in it. In a password, write it as %23.")
        mode = parameters.get("sslmode", "prefer")
        if mode not in _TLS_MODES:
            raise InvalidURL(f"sslmode={mode} is not one of {', '.join(_TLS_MODES)}.")
        for name in _IGNORED:
            if parameters.pop(name, None) == "require":
                raise InvalidURL(
                    f"{name}=require is more than the driver can do. Leave it out; use sslmode=verify-full."
                )
        settings = {
            "pool_size": _size(parameters.pop("pool_size", "10")),
            "statement_timeout": _seconds("statement_timeout", parameters.pop("statement_timeout", "30s")),
            "connect_timeout": _seconds("connect_timeout", parameters.pop("connect_timeout", "10s")),
        }
        database = unquote(parts.path.lstrip("/")) or parameters.get("dbname", "")
        plain = parts._replace(scheme="postgresql", netloc=_netloc(login, hosts), query=urlencode(parameters))
        return cls(
            urlunsplit(plain),
            **settings,  # type: ignore[arg-type]
            place=f"{hosts or parameters.get('host') or os.environ.get('PGHOST', 'localhost')}/{database}",
            files=tuple((name, parameters[name]) for name in _FILES if parameters.get(name)),
        )


def _netloc(login: str, hosts: str) -> str:
    """The same with what is special in a password written as it should be: the driver cuts at the first @."""
    if not login:
        return hosts
    user, colon, password = (quote(unquote(part), safe="") for part in login.partition(":"))
    return f"{user}{unquote(colon)}{password}@{hosts}"


def _size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 2 <= int(text) <= 1000:
        raise InvalidURL("pool_size= takes a number of connections from 2 to 1000.")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        # libpq writes a bare number of seconds
        span = parse_span(int(text) if text.isascii() and text.isdigit() else text, name)
    except ValueError:
        span = None
    if span is None or span.total_seconds() <= 0:
        raise InvalidURL(f"{name}= takes a time such as 30s.")
    return span.total_seconds()
