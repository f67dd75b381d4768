"""Whether one engine may be chosen: what probes see beside the request path, and what requests meet on it.

Probes find the engine that is gone. Requests find the one that answers probes and fails at its work: a streak of them
ejects it for a cool-down, after which it is on trial: the next failure ejects it for twice as long, the next success
clears it. A 4xx is the client's: it is neither a failure nor a success of the engine.
"""

from __future__ import annotations

from typing import Final

REQUEST_FAILURES_TO_EJECT: Final = 5
FIRST_COOL_DOWN_S: Final = 5.0
LONGEST_COOL_DOWN_S: Final = 60.0
SILENCE_S: Final = 10.0  # of an engine that answers probes and no request; a long answer in one piece may take as long


class Health:
    """Good until told otherwise. Each method returns whether the engine may be chosen now."""

    __slots__ = (
        "_cool_down_s",
        "_ejected_s",
        "_probe_failures",
        "_request_failures",
        "answers",
        "ejections",
        "returns",
    )

    def __init__(self) -> None:
        self.answers = True  # by the probes
        self.ejections = 0
        self.returns = 0
        self._probe_failures = 0
        self._request_failures = 0
        self._cool_down_s = FIRST_COOL_DOWN_S  # of the next ejection by requests
        self._ejected_s: float | None = None  # when requests ejected it, until the cool-down has passed

    @property
    def healthy(self) -> bool:
        return self.answers and self._ejected_s is None

    @property
    def fails_requests_only(self) -> bool:
        """Ejected by requests though it answers probes: worth a try when every other engine is gone."""
        return self.answers and self._ejected_s is not None

    @property
    def doubtful(self) -> bool:
        """Whether something speaks against it, so that it is worth probing again soon."""
        return bool(self._probe_failures or self._request_failures) or not self.healthy

    def probed(self, answered: bool, now_s: float, failures_to_eject: int) -> bool:
        """A probe was answered or was not."""
        was = self.healthy
        if not answered:
            self._probe_failures += 1
            if self._probe_failures >= failures_to_eject:
                self.answers = False
        else:
            if not self.answers:  # it was gone: what requests met was another life of it
                self._clear_requests()
            self.answers = True
            self._probe_failures = 0
        self._end_cool_down(now_s)
        return self._counted(was)

    def failed(self, now_s: float) -> bool:
        """A request met a refused connection, a time-out or a 5xx."""
        was = self.healthy
        self._end_cool_down(now_s)
        self._request_failures += 1
        if self._ejected_s is None and self._request_failures >= REQUEST_FAILURES_TO_EJECT:
            self._ejected_s = now_s
        return self._counted(was)

    def succeeded(self) -> bool:
        """A request was served, with a status below 400."""
        was = self.healthy
        self._clear_requests()
        return self._counted(was)

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

    def _counted(self, was: bool) -> bool:
        now = self.healthy
        if was and not now:
            self.ejections += 1
        elif now and not was:
            self.returns += 1
        return now
