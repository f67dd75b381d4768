"""What a request met besides its decision and its engine, for whoever traces it: parts with their times.

The router's own code adds a part where it happens. Some come after the request's end: a judge's score, a copy of KV.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

Value = str | int | float
Later = Callable[["Part"], None]


class Part(msgspec.Struct, frozen=True, gc=False):
    """Times are of the router's clock. `error` says why it failed; empty: it did not."""

    name: str
    began_s: float
    ended_s: float
    attributes: Mapping[str, Value | None] = {}
    error: str = ""


class Trace:
    """Of one request. `parts` are those until its end."""

    __slots__ = ("_later", "parts", "traceparent")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.traceparent = ""  # for what is asked on its behalf once it has ended; empty: it is not sampled
        self._later: Later = self.parts.append

    def add(self, part: Part) -> None:
        self._later(part)

    def ended(self, later: Later, traceparent: str = "") -> None:
        """From now on parts go to `later`."""
        self._later, self.traceparent = later, traceparent
