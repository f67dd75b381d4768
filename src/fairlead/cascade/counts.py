"""What cascades did, as plain numbers for the metrics page."""

from __future__ import annotations

from typing import Final, Literal

from fairlead.core.histogram import DURATION_SECONDS, Histogram

SCORES: Final = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0)

# Why an answer was accepted without a sufficient score.
Reason = Literal[
    "judge",  # the judge failed, was too slow, or gave no score
    "deadline",  # the request's deadline has passed
    "tokens",  # the route's budget for one request
    "stages_down",  # no larger model answered
    "tool_calls",  # not judged, unless the route says so
    "unjudgeable",  # a stream that the route passes, a request too long to keep, another API
    "unreadable",  # not an answer in OpenAI's form
    "full_duplex",  # Envoy cannot hold an answer back in that mode
    "too_large",  # longer than the route's limit, or of unknown length
    "busy",  # too many requests of cascades are held already
]

SampleOutcome = Literal["written", "unwritten", "incomplete", "dropped"]


class CascadeCounts:
    """Keys are names from the configuration, so they are few."""

    def __init__(self) -> None:
        self.accepted: dict[tuple[str, str], int] = {}  # by route and the model whose answer it was
        self.passed: dict[tuple[str, Reason], int] = {}  # by route
        self.scores: dict[str, Histogram] = {}  # by model
        self.added_seconds: dict[str, Histogram] = {}  # by route, for requests that were held
        self.held = 0  # now
        self.sampled: dict[SampleOutcome, int] = dict.fromkeys(("written", "unwritten", "incomplete", "dropped"), 0)

    def accept(self, route: str, model: str, added_s: float) -> None:
        self.accepted[route, model] = self.accepted.get((route, model), 0) + 1
        self.added_seconds.setdefault(route, Histogram(DURATION_SECONDS)).observe(added_s)

    def passed_for(self, route: str, reason: Reason) -> None:
        self.passed[route, reason] = self.passed.get((route, reason), 0) + 1

    def scored(self, model: str, score: float) -> None:
        self.scores.setdefault(model, Histogram(SCORES)).observe(score)
