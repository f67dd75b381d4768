"""Whether the process behind an address is still the same: it may restart, and several may answer there in turn.

An engine that was gone and answers again may have restarted, or was busy, or cut off: its next page of metrics shows
which. How two pages show it is in `core.reported`; when they are asked for, in `engines.watch`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

from fairlead.core.reported import EngineReport, restarted

Process = Literal["same", "restarted", "several"]
_STARTS: Final = 16  # of processes that are remembered


class Restarts:
    """Told of probes and pages in the order in which they were answered."""

    __slots__ = ("_starts_s", "_was_gone", "_was_seen")

    def __init__(self) -> None:
        self._starts_s: deque[float] = deque(maxlen=_STARTS)  # of the processes whose pages were read
        self._was_seen = False  # it has answered a probe
        self._was_gone = False  # it answers again, but no page has shown yet whether it restarted

    def probe_answered(self, *, was_gone: bool) -> None:
        """Down and up again may have been the network, or a busy engine: the next page shows which."""
        self._was_gone |= was_gone and self._was_seen
        self._was_seen = True

    def page_came(self, before: EngineReport, page: EngineReport) -> Process:
        """`several`: no process comes back, so that this page is of one that was read before another's."""
        start_s = page.process_start_s
        is_other, is_known = restarted(before, page, was_gone=self._was_gone), start_s in self._starts_s
        self._was_gone = False
        if start_s is not None and not is_known:
            self._starts_s.append(start_s)
        if not is_other:
            return "same"
        return "several" if is_known else "restarted"

    def has_no_page(self) -> bool:
        """It answers, and has no page that could show a restart: whether it is taken to have restarted."""
        was_gone, self._was_gone = self._was_gone, False
        return was_gone
