"""Settings of the property tests."""

from __future__ import annotations

from hypothesis import settings

# A drawn example has no time limit: tests judge behaviour, and the machine may be busy.
settings.register_profile("house", deadline=None)
settings.load_profile("house")
