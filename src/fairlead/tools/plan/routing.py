"""What thresholds do to a profiled sample: who reaches which model, whose answer is accepted, how good the answers are.

A request goes on from model i to the next while its answer scores below `thresholds[i]`; the last model's answer is
always accepted. Source: Cascadia section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

ACCEPT_ALL = 0.0  # scores are 0 to 100
TOP_SCORE = 100.0  # that a judge gives
_MOST_CANDIDATES = 4096  # threshold vectors compared in one search


@dataclass(frozen=True, slots=True)
class Profile:
    """A sample of requests through every model. Arrays have one row a request; all but the first one column a model."""

    models: tuple[str, ...]
    prompt_tokens: Floats
    output_tokens: Floats
    score: Floats  # the judge's, 0 to 100: decides who goes on
    quality: Floats  # what counts for the user: the score, if nothing better is known

    def of(self, models: Sequence[int]) -> Profile:
        """The sample restricted to these models."""
        columns = list(models)
        return Profile(
            models=tuple(self.models[index] for index in columns),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens[:, columns],
            score=self.score[:, columns],
            quality=self.quality[:, columns],
        )


@dataclass(frozen=True, slots=True)
class Routed:
    """The effect of one vector of thresholds on the sample."""

    thresholds: tuple[float, ...]
    reached: tuple[Flags, ...]  # for each model, the requests that it answers
    quality: float  # mean of the accepted answers

    @property
    def shares(self) -> tuple[float, ...]:
        return tuple(float(flags.mean()) for flags in self.reached)


def route(profile: Profile, thresholds: Sequence[float]) -> Routed:
    reached = [np.ones(len(profile.prompt_tokens), dtype=bool)]
    quality = np.zeros(len(profile.prompt_tokens))
    for stage in range(len(profile.models)):
        quality[reached[-1]] = profile.quality[reached[-1], stage]
        if stage < len(thresholds):
            reached.append(reached[-1] & (profile.score[:, stage] < thresholds[stage]))
    return Routed(tuple(thresholds), tuple(reached), float(quality.mean()))


def alone(profile: Profile, stage: int) -> float:
    """Quality when every request is answered by this model."""
    return float(profile.quality[:, stage].mean())


def proportional(profile: Profile) -> tuple[float, ...]:
    """The first strategy: the i-th model receives 1/i of the requests, as nearly as the scores allow."""
    thresholds: list[float] = []
    reached = np.ones(len(profile.prompt_tokens), dtype=bool)
    for stage in range(len(profile.models) - 1):
        scores = profile.score[reached, stage]
        if not len(scores):
            thresholds.append(ACCEPT_ALL)
            continue
        wanted = len(profile.prompt_tokens) / (stage + 2) / len(scores)
        thresholds.append(float(np.quantile(scores, min(wanted, 1.0), method="higher")))
        reached = reached & (profile.score[:, stage] < thresholds[-1])
    return tuple(thresholds)


def candidates(profile: Profile) -> list[Routed]:
    """Threshold vectors worth comparing, each different in who is accepted where.

    Between two scores that occur next to each other, all thresholds accept the same answers: the scores themselves,
    `ACCEPT_ALL`, and the top of the scale, which accepts none below it, are enough. If there are too many, quantiles
    represent them.
    """
    stages = len(profile.models) - 1
    most = max(2, int(_MOST_CANDIDATES ** (1 / max(stages, 1))))
    chosen: list[tuple[float, ...]] = [()]
    for stage in range(stages):
        levels = _levels(profile.score[:, stage], most)
        # After a model that accepts everything, nothing is left to decide.
        chosen = [
            (*before, level) for before in chosen for level in (levels if ACCEPT_ALL not in before else levels[:1])
        ]
    return [route(profile, thresholds) for thresholds in chosen]


def _levels(scores: Floats, most: int) -> list[float]:
    distinct = np.unique(scores)
    if len(distinct) > most:
        distinct = np.unique(np.quantile(scores, np.linspace(0, 1, most), method="nearest"))
    above = [TOP_SCORE] if distinct[-1] < TOP_SCORE else []
    return [ACCEPT_ALL, *(float(score) for score in distinct[1:]), *above]
