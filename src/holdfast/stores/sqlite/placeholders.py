"""`$1` written as SQLite wants it: `?1`. A dollar in a text, a quoted name or a comment stays as it is."""

from __future__ import annotations

import re
from functools import lru_cache

_TOKEN = r"""
  '(?: [^'] | '' )*+ '?                # a text
| "(?: [^"] | "" )*+ "?                # names, in the ways that SQLite quotes them
| `(?: [^`] | `` )*+ `?
| \[ [^\]]*+ \]?
| -- [^\n]*+
| /\* (?: (?! \*/ ) . )*+ (?: \*/ )?
| [\w\x80-\U0010ffff] [\w$\x80-\U0010ffff]*+   # a word or a number: a dollar inside belongs to it
| \$ (?P<number> [1-9] [0-9]*+ ) (?! [\w$\x80-\U0010ffff] )
| \$ [\w$\x80-\U0010ffff]*+          # something else, for SQLite to complain about
"""


@lru_cache(maxsize=512)
def rewrite(sql: str) -> str:
    """The same statement, with its values named as SQLite does."""
    if "$" not in sql:
        return sql
    # Compiled at first use, and then known to `re`: it takes longer than any other import, and few need it.
    tokens = re.compile(_TOKEN, re.VERBOSE | re.DOTALL | re.ASCII)
    return tokens.sub(lambda token: f"?{token['number']}" if token["number"] else token[0], sql)
