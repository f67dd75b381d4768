"""Windows compared as if all had had the same prompts and answers.

Most of what p95 time to the end does from window to window is the luck of who asked for long answers, which no weights
change. Where the engine told the lengths, that part is taken out: a line through all windows' requests says what tokens
of prompts and answers cost there; each window keeps what its requests took beyond the line, and is given the lengths of
all windows together.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from statistics import fmean
from typing import Final

import msgspec

SCORED_QUANTILE: Final = 0.95
LEAST_KNOWN: Final = 40  # requests of a window whose lengths are known; of fewer nothing is taken out
_LENGTHS: Final = 32  # that stand for those of all windows
_HALVINGS: Final = 40
_RIDGE: Final = 1e-9


class Timed(msgspec.Struct, frozen=True, gc=False):
    """One request that was answered, and its lengths as the engine told them."""

    total_ms: float
    prompt_tokens: float
    output_tokens: float


class Sample(msgspec.Struct, frozen=True):
    """Those requests of a window whose lengths are known, and the share of all that failed or never ended."""

    timed: tuple[Timed, ...]
    failed_share: float


def p95s_ms(windows: Sequence[Sample]) -> list[float] | None:
    """One p95 time to the end for each window, with equal lengths; None where too few lengths are known."""
    if any(len(window.timed) < LEAST_KNOWN for window in windows):
        return None
    everyone = [timed for window in windows for timed in window.timed]
    prompt_ms, output_ms = _costs(everyone)
    told = sorted(prompt_ms * each.prompt_tokens + output_ms * each.output_tokens for each in everyone)
    shifts = [told[(2 * place + 1) * len(told) // (2 * _LENGTHS)] for place in range(_LENGTHS)]
    return [
        _quantile(
            sorted(t.total_ms - prompt_ms * t.prompt_tokens - output_ms * t.output_tokens for t in window.timed),
            shifts,
            window.failed_share,
        )
        for window in windows
    ]


def _costs(everyone: Sequence[Timed]) -> tuple[float, float]:
    """Milliseconds for a token of prompts and of answers: least squares."""
    means = [
        fmean(column)
        for column in zip(*[(t.total_ms, t.prompt_tokens, t.output_tokens) for t in everyone], strict=True)
    ]
    total, prompt, output = means
    pp = oo = po = pt = ot = 0.0
    for each in everyone:
        p, o, t = each.prompt_tokens - prompt, each.output_tokens - output, each.total_ms - total
        pp += p * p
        oo += o * o
        po += p * o
        pt += p * t
        ot += o * t
    pp, oo = pp * (1 + _RIDGE) + _RIDGE, oo * (1 + _RIDGE) + _RIDGE  # lengths may be all alike, or in step
    determinant = pp * oo - po * po
    return (pt * oo - ot * po) / determinant, (ot * pp - pt * po) / determinant


def _quantile(rest_ms: Sequence[float], shifts_ms: Sequence[float], failed_share: float) -> float:
    """Of all sums of one of each, when besides a share of requests never ends."""
    wanted = SCORED_QUANTILE / (1.0 - failed_share) if failed_share < 1.0 else math.inf
    if wanted > 1.0:
        return math.inf
    most = wanted * len(rest_ms) * len(shifts_ms)
    low, high = rest_ms[0] + shifts_ms[0], rest_ms[-1] + shifts_ms[-1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum([bisect_right(rest_ms, middle - shift) for shift in shifts_ms]) >= most:
            high = middle
        else:
            low = middle
    return max(high, 0.0)
