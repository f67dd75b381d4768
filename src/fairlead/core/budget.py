"""A budget of messages a second: what may be observed in full without weighing on the request path."""

from __future__ import annotations

BURST_S = 2.0


class MessageBudget:
    """A token bucket that may run into debt, since a stream that is observed must be observed to its end."""

    __slots__ = ("_filled_s", "_left", "_per_second")

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left = per_second * BURST_S
        self._filled_s: float | None = None

    def open(self, now_s: float) -> bool:
        """Whether one more answer may be observed."""
        passed_s = 0.0 if self._filled_s is None else max(0.0, now_s - self._filled_s)
        self._filled_s = now_s
        self._left = min(self._left + passed_s * self._per_second, self._per_second * BURST_S)
        return self._left >= 1.0

    def spend(self, messages: int = 1) -> None:
        """Messages came."""
        self._left -= messages
