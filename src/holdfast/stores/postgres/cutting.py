"""SQL text, cut into its statements. A semicolon in a text, a comment or a function's body ends nothing."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
      (?P<line> --[^\n]* )
    | (?P<block> /\* )
    | \b[eE]'(?: [^'\\] | \\. | '' )*'
    | '(?: [^'] | '' )*'
    | "(?: [^"] | "" )*"
    | (?<![\w$]) \$ (?P<tag> (?: [^\W\d]\w* )? ) \$ .*? \$ (?P=tag) \$
    | (?P<end> ; )
    | [^\s;] # anything else is code
    """,
    re.VERBOSE | re.DOTALL,
)
_EDGE_OF_BLOCK = re.compile(r"/\*|\*/")


def cut(sql: str) -> list[str]:
    """The statements, each without its semicolon and the comments before it."""
    statements: list[str] = []
    first: int | None = None
    at = 0
    while (token := _TOKEN.search(sql, at)) is not None:
        at = _end_of_block(sql, token.start()) if token["block"] else token.end()
        if token["end"]:
            if first is not None:
                statements.append(sql[first : token.start()].strip())
            first = None
        elif first is None and not token["line"] and not token["block"]:
            first = token.start()
    if first is not None:
        statements.append(sql[first:].strip())
    return statements


def _end_of_block(sql: str, at: int) -> int:
    """PostgreSQL's comments stand in each other."""
    depth = 0
    for edge in _EDGE_OF_BLOCK.finditer(sql, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(sql)
