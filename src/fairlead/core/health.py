"""Whether one engine may be chosen: what probes see off the request path, and how requests fare on it.

Probes find the engine that is gone. Requests find the one that answers probes and fails at its work: a streak of
failures ejects it for a cool-down, after which it is on trial: the next failure ejects it for twice as long, the next
success clears it. A 4xx is the client's, or a full queue's: it is neither a failure nor a success of the engine.
Whoever knows that an engine may get nothing new for another reason, however well it is, withholds it.
"""

from __future__ import annotations

from typing import Final

REQUEST_FAILURES_TO_EJECT: Final = 5
FIRST_COOL_DOWN_S: Final = 5.0
LONGEST_COOL_DOWN_S: Final = 60.0

# Reasons by which an engine is withheld.
DRAINING: Final = "draining"  # as discovery says
UNCONFIRMED: Final = "unconfirmed"  # Envoy has been sent it, and has not answered yet
UNKNOWN_TO_ENVOY: Final = "unknown_to_envoy"  # it was chosen, and Envoy sent the requests elsewhere
LEAVING: Final = "leaving"  # it is listed no more, and those that replace it have not served yet
WARMING_IN: Final = "warming_in"  # it has just joined, and has all the requests that it gets before an answer
HALF: Final = "half"  # it does only the prefill or the decoding of a request
WITHHELD_REASONS: Final = (DRAINING, UNCONFIRMED, UNKNOWN_TO_ENVOY, LEAVING, WARMING_IN, HALF)
_PASSING: Final = frozenset({UNCONFIRMED, LEAVING, WARMING_IN})
_WARMING: Final = frozenset({WARMING_IN})

SILENCE_S: Final = 10.0  # of an engine that answers probes and no request; a long answer in one piece may take as long


class Health:
    """Healthy until probes or requests fail. Each method returns `healthy`: whether the engine may be chosen now."""

    __slots__ = (
        "_cool_down_s",
        "_ejected_s",
        "_probe_failures",
        "_request_failures",
        "_was_well",
        "answers",
        "ejections",
        "healthy",
        "returns",
        "withheld",
    )

    def __init__(self) -> None:
        self.healthy = True  # read for every candidate of every decision, so it is kept rather than derived
        self.answers = True  # by the probes
        self.ejections = 0
        self.returns = 0
        self.withheld: frozenset[str] = frozenset()  # why it gets nothing new though it may be well
        self._probe_failures = 0
        self._request_failures = 0
        self._cool_down_s = FIRST_COOL_DOWN_S  # of the next ejection by requests
        self._was_well = True
        self._ejected_s: float | None = None  # when requests ejected it, until the cool-down has passed

    @property
    def last_resort(self) -> bool:
        """Worth a try when no engine is healthy: it answers probes, and whatever speaks against it soon passes."""
        passes = self._ejected_s is not None or bool(self.withheld)
        return passes and self.answers and self.withheld <= _PASSING

    @property
    def only_warms_in(self) -> bool:
        """Whether nothing speaks against it but that it has as many requests as one that has just joined should."""
        return self._well() and self.withheld == _WARMING

    def withhold(self, reason: str, *, active: bool = True) -> bool:
        """Give the engine nothing new for `reason`, or, where that is not `active` any more, let it have requests."""
        self.withheld = self.withheld | {reason} if active else self.withheld - {reason}
        self.healthy = self._well() and not self.withheld
        return self.healthy

    def _well(self) -> bool:
        return self.answers and self._ejected_s is None

    @property
    def doubtful(self) -> bool:
        """Whether probes or requests have failed, so that it is worth probing again soon."""
        return bool(self._probe_failures or self._request_failures) or not self.healthy

    def probed(self, answered: bool, now_s: float, failures_to_eject: int) -> bool:
        """A probe was answered or was not."""
        if not answered:
            self._probe_failures += 1
            if self._probe_failures >= failures_to_eject:
                self.answers = False
        else:
            if not self.answers:  # it was gone: earlier failures were of the process before its restart
                self._clear_requests()
            self.answers = True
            self._probe_failures = 0
        self._end_cool_down(now_s)
        return self._changed()

    def failed(self, now_s: float) -> bool:
        """A request met a refused connection, a time-out or a 5xx."""
        self._end_cool_down(now_s)
        self._request_failures += 1
        if self._ejected_s is None and self._request_failures >= REQUEST_FAILURES_TO_EJECT:
            self._ejected_s = now_s
        return self._changed()

    def succeeded(self) -> bool:
        """A request was served, with a status below 400."""
        self._clear_requests()
        return self._changed()

    def _clear_requests(self) -> None:
        self._request_failures = 0
        self._cool_down_s = FIRST_COOL_DOWN_S
        self._ejected_s = None

    def _end_cool_down(self, now_s: float) -> None:
        """On trial from now on if the time has come; a clock that went back ends the cool-down too."""
        if self._ejected_s is not None and not 0 <= now_s - self._ejected_s < self._cool_down_s:
            self._ejected_s = None
            self._request_failures = REQUEST_FAILURES_TO_EJECT - 1
            self._cool_down_s = min(2 * self._cool_down_s, LONGEST_COOL_DOWN_S)

    def _changed(self) -> bool:
        well = self._well()
        if self._was_well and not well:
            self.ejections += 1
        elif well and not self._was_well:
            self.returns += 1
        self._was_well = well
        self.healthy = well and not self.withheld
        return self.healthy
