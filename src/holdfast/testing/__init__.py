"""What tests of Holdfast, of its users and of store authors are made with."""

from __future__ import annotations

from holdfast.testing.clock import ManualClock

__all__ = ["ManualClock"]
