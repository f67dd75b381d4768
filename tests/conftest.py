"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# How long one example takes says how busy the machine is; pytest-timeout is for tests that hang.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
