"""Windows compared as if all had the same lengths of prompts and answers.

Most of what p95 time to the end does from window to window is the chance of who asked for long answers, which no
weights change. Where the engine reported the lengths, that part is removed: a line through all windows' requests gives
the cost of prompt and answer tokens there; each window keeps the time its requests took beyond the line, and is given
the lengths of all windows together.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from statistics import fmean
from typing import Final

import msgspec

from fairlead.statistics import least_squares

SCORED_QUANTILE: Final = 0.95
LEAST_KNOWN: Final = 40  # requests of a window with known lengths; with fewer, nothing is removed
_LENGTHS: Final = 32  # quantiles that represent the lengths of all windows
_HALVINGS: Final = 40
_RIDGE: Final = 1e-9


class Timed(msgspec.Struct, frozen=True, gc=False):
    """One request that was answered, and its lengths as the engine reported them."""

    total_ms: float
    prompt_tokens: float
    output_tokens: float


class Sample(msgspec.Struct, frozen=True):
    """The requests of a window whose lengths are known, and the share of all that failed or never ended."""

    timed: tuple[Timed, ...]
    failed_share: float


def p95s_ms(windows: Sequence[Sample]) -> list[float] | None:
    """One p95 time to the end for each window, with equal lengths; None if too few lengths are known."""
    if any(len(window.timed) < LEAST_KNOWN for window in windows):
        return None
    everyone = [timed for window in windows for timed in window.timed]
    prompt_ms, output_ms = _costs(everyone)
    costs_ms = sorted(prompt_ms * each.prompt_tokens + output_ms * each.output_tokens for each in everyone)
    offsets = [costs_ms[(2 * place + 1) * len(costs_ms) // (2 * _LENGTHS)] for place in range(_LENGTHS)]
    return [
        _quantile(
            sorted(t.total_ms - prompt_ms * t.prompt_tokens - output_ms * t.output_tokens for t in window.timed),
            offsets,
            window.failed_share,
        )
        for window in windows
    ]


def _costs(everyone: Sequence[Timed]) -> tuple[float, float]:
    """Milliseconds for a token of prompts and of answers: least squares."""
    total, prompt, output = (
        _centred(column)
        for column in zip(*[(t.total_ms, t.prompt_tokens, t.output_tokens) for t in everyone], strict=True)
    )
    # Lengths may be all equal, or proportional to each other.
    assumed = [(_RIDGE * (1 + sum(each * each for each in lengths)), 0.0) for lengths in (prompt, output)]
    prompt_ms, output_ms = least_squares((prompt, output), total, assumed=assumed)
    return prompt_ms, output_ms


def _centred(values: Sequence[float]) -> list[float]:
    mean = fmean(values)
    return [value - mean for value in values]


def _quantile(rest_ms: Sequence[float], offsets_ms: Sequence[float], failed_share: float) -> float:
    """The p95 over all sums of one value from each list, if a share of requests never ends."""
    wanted = SCORED_QUANTILE / (1.0 - failed_share) if failed_share < 1.0 else math.inf
    if wanted > 1.0:
        return math.inf
    most = wanted * len(rest_ms) * len(offsets_ms)
    low, high = rest_ms[0] + offsets_ms[0], rest_ms[-1] + offsets_ms[-1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum([bisect_right(rest_ms, middle - offset) for offset in offsets_ms]) >= most:
            high = middle
        else:
            low = middle
    return max(high, 0.0)
