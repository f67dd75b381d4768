"""The one exception for mistakes that a user can mend: printed as a sentence, never as a traceback."""

from __future__ import annotations


class UserError(Exception):
    """What is wrong, where, and what to change. Commands print it to stderr and end with 2."""
