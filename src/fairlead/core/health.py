"""Whether one engine may be chosen: what probes see off the request path, and how requests fare on it.

Probes find the engine that is gone. Requests find the one that answers probes and fails at its work: a streak of
failures ejects it for a while (`core.streak`). A 4xx is the client's, or a full queue's: it is neither a failure nor a
success of the engine.
Whoever knows that an engine may get nothing new for another reason, however well it is, withholds it.
"""

from __future__ import annotations

from math import inf
from typing import Final

from fairlead.core.streak import Streak

# Reasons by which an engine is withheld.
DRAINING: Final = "draining"  # as discovery says
UNCONFIRMED: Final = "unconfirmed"  # Envoy has been sent it, and has not answered yet
UNKNOWN_TO_ENVOY: Final = "unknown_to_envoy"  # it was chosen, and Envoy sent the requests elsewhere
LEAVING: Final = "leaving"  # it is listed no more, and those that replace it have not served yet
WARMING_IN: Final = "warming_in"  # it has just joined, and has all the requests that it gets before an answer
HALF: Final = "half"  # it does only the prefill or the decoding of a request
OTHER_MODEL: Final = "other_model"  # it answered 404, and lists other models than its own
WITHHELD_REASONS: Final = (DRAINING, UNCONFIRMED, UNKNOWN_TO_ENVOY, LEAVING, WARMING_IN, HALF, OTHER_MODEL)
_PASSING: Final = frozenset({UNCONFIRMED, LEAVING, WARMING_IN, OTHER_MODEL})
_WARMING: Final = frozenset({WARMING_IN})

SILENCE_S: Final = 10.0  # of an engine that answers probes and no request; a long answer in one piece may take as long


class Health:
    """Healthy until probes or requests fail. Each method returns `healthy`: whether the engine may be chosen now."""

    __slots__ = (
        "_probe_failures",
        "_was_well",
        "answers",
        "away_s",
        "ejections",
        "healthy",
        "requests",
        "returns",
        "withheld",
    )

    def __init__(self) -> None:
        self.healthy = True  # read for every candidate of every decision, so it is kept rather than derived
        self.answers = True  # by the probes
        self.away_s = -inf  # when they last went unanswered, while it was not there
        self.ejections = 0
        self.returns = 0
        self.withheld: frozenset[str] = frozenset()  # why it gets nothing new though it may be well
        self._probe_failures = 0
        self.requests = Streak()  # of those that failed
        self._was_well = True

    @property
    def last_resort(self) -> bool:
        """Worth a try when no engine is healthy: it answers probes, and whatever speaks against it soon passes."""
        passes = self.requests.is_out or bool(self.withheld)
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
        return self.answers and not self.requests.is_out

    @property
    def doubtful(self) -> bool:
        """Whether probes or requests have failed, so that it is worth probing again soon."""
        return bool(self._probe_failures or self.requests.failures) or not self.healthy

    def probed(self, answered: bool, now_s: float, failures_to_eject: int) -> bool:
        """A probe was answered or was not."""
        if not answered:
            self._probe_failures += 1
            if self._probe_failures >= failures_to_eject:
                self.answers, self.away_s = False, now_s
        else:
            if not self.answers:  # it was gone: earlier failures were of the process before its restart
                self.requests.clear()
            self.answers = True
            self._probe_failures = 0
        self.requests.look(now_s)
        return self._changed()

    def failed(self, now_s: float, cause: int | None = None) -> bool:
        """A request met a refused connection, a time-out or a 5xx; `cause`: what stands for it, if it may be why."""
        self.requests.failed(now_s, cause)
        return self._changed()

    def suspected(self, now_s: float, cause: int | None = None) -> bool:
        """A request failed here by the fault of this engine or of another: a failure of its own is still to come."""
        self.requests.suspected(now_s, cause)
        return self._changed()

    def succeeded(self) -> bool:
        """A request was served, with a status below 400."""
        self.requests.clear()
        return self._changed()

    def _changed(self) -> bool:
        well = self._well()
        if self._was_well and not well:
            self.ejections += 1
        elif well and not self._was_well:
            self.returns += 1
        self._was_well = well
        self.healthy = well and not self.withheld
        return self.healthy
