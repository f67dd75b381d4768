"""What the demo measured, and how policies compare: pure statistics, no traffic and no display.

All policies answer the same questions, so they are compared question by question, and the intervals resample questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from statistics import fmean, median
from typing import Final

from fairlead.client import Answer, Attempt
from fairlead.tools.demo.questions import Question

RESAMPLES: Final = 2000
_TAIL: Final = 0.025  # on each side of a 95 % interval


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """One question under one policy. `time_ms` is a lower bound where no attempt was correct."""

    length_tokens: int
    time_ms: float
    attempts: tuple[Attempt, ...]

    @classmethod
    def of(cls, question: Question, answer: Answer) -> QuestionResult:
        return cls(question.length_tokens, answer.time_to_correct_answer_ms, answer.attempts)

    @property
    def correct(self) -> bool:
        return self.attempts[-1].correct

    @property
    def correct_at_once(self) -> bool:
        return self.attempts[0].correct


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """One policy over all its questions. The median counts a question without a right answer as infinite."""

    mean_ms: float
    median_ms: float
    first_attempt_success: float
    success: float
    attempts: float

    @classmethod
    def of(cls, results: Sequence[QuestionResult]) -> PolicySummary:
        return cls(
            mean_ms=fmean(result.time_ms for result in results),
            median_ms=median(result.time_ms if result.correct else inf for result in results),
            first_attempt_success=fmean(result.correct_at_once for result in results),
            success=fmean(result.correct for result in results),
            attempts=fmean(len(result.attempts) for result in results),
        )


@dataclass(frozen=True, slots=True)
class Improvement:
    """By how much the mean time to a correct answer fell, as a share of the other policy's; negative: it rose."""

    share: float
    low: float
    high: float

    @property
    def beyond_chance(self) -> bool:
        return self.low > 0 or self.high < 0


def improvement(ours: Sequence[QuestionResult], theirs: Sequence[QuestionResult], seed: int = 0) -> Improvement:
    """`ours` over `theirs`, which answer the same questions in the same order. The interval is a 95 % bootstrap."""
    pairs = [(mine.time_ms, other.time_ms) for mine, other in zip(ours, theirs, strict=True)]
    rng = Random(seed)
    resampled = sorted(_share(rng.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    tail = int(RESAMPLES * _TAIL)
    return Improvement(_share(pairs), resampled[tail], resampled[-1 - tail])


def _share(pairs: Sequence[tuple[float, float]]) -> float:
    return 1 - sum(mine for mine, _ in pairs) / sum(other for _, other in pairs)
