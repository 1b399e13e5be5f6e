"""What people type."""

from __future__ import annotations

import re

from holdfast.span import Span


def typed_span(text: str) -> Span:
    """A span; or a bare number, which is one of seconds, as everywhere."""
    return float(text) if re.fullmatch(r"\d{1,12}(\.\d{1,6})?", text) else text
