"""A run of equal steps: made in one jump where nobody looks at each, with the times that single steps would have."""

from __future__ import annotations


class EqualSteps:
    """Step i of a run, from 0, ends at its start + (i + 1) * its step time. An engine without work has an empty one."""

    __slots__ = ("_start_ms", "_step_ms", "done", "length")

    def __init__(self) -> None:
        self.done = 0  # steps of it that have been accounted for
        self.length = 0
        self._start_ms = 0.0
        self._step_ms = 0.0

    def begin(self, now_ms: float, step_ms: float, length: int) -> None:
        self._start_ms, self._step_ms = now_ms, step_ms
        self.done, self.length = 0, length

    def ends_ms(self, *, each: bool) -> float | None:
        """When the next step ends, or, unless `each` counts, the run; None if it is empty."""
        if not self.length:
            return None
        return self._start_ms + (self.done + 1 if each else self.length) * self._step_ms

    def ended_since(self, now_ms: float) -> int:
        """Steps that have ended by now and are not accounted for."""
        if not self.length:
            return 0
        ended = min(self.length, int((now_ms - self._start_ms) / self._step_ms))
        return max(0, ended - self.done)

    def cut(self, now_ms: float) -> int:
        """End it with the step that is under way. Returns how many before that are not accounted for."""
        ended = max(self.done, int((now_ms - self._start_ms) / self._step_ms) - 1)
        while ended < self.length - 1 and self._start_ms + (ended + 1) * self._step_ms <= now_ms:
            ended += 1
        self.length = ended + 1
        return ended - self.done
