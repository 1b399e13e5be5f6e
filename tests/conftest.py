"""Settings that all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Machines differ and are busy: how long an example takes says nothing about its being right.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("default"), max_examples=1000)
settings.load_profile("thorough" if os.environ.get("HOLDFAST_THOROUGH") else "default")
