"""A budget for work that earns nothing: floods of PING, SETTINGS, empty DATA, resets before any message.

Counts, not rates of streams: Envoy resets every stream at the end of its request, having sent messages on it, and must
never be taken for an attacker for that.
"""

from __future__ import annotations

from fairlead.edge.http2.frames import ErrorCode, PeerError
from fairlead.edge.http2.limits import Limits


class WorkBudget:
    """Units as in `Limits`. `spend` raises PeerError once nothing is left."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.left = limits.work_burst

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def earn_message(self) -> None:
        if self.left < self._limits.work_burst:
            self.left += self._limits.work_a_message

    def refill(self, elapsed_s: float) -> None:
        self.left = min(self._limits.work_burst, self.left + int(self._limits.work_refill_per_s * elapsed_s))
