"""The one exception for mistakes that a user can fix: printed as a sentence, never as a traceback."""

from __future__ import annotations


class UserError(Exception):
    """What is wrong, where, and what to change. Commands print it to stderr and end with 2."""


def how_to_install(extra: str) -> str:
    """What to run for an extra of ours. We are on no registry yet, and PyPI's `fairlead` is somebody else's package."""
    return f"in a checkout of Fairlead run: pip install '.[{extra}]'"
