"""What an answer takes at an engine, as a linear function of the work that it meant, fitted to samples of it.

    ms = fixed_ms * requests + prefill_ms * (own + others' prefill work) + alone_ms * (steps + slowdown * concurrent)
    prefill work = prompt tokens that were computed + growth * tokens that they attended        (`core.prefill_work`)

One function holds for every part of an answer that can be timed: up to its first token, from there to its end, all of
it where it comes in one piece. So each teaches what it can of the same constants. What others did meanwhile is known by
estimate, and at an engine that is full most of a wait is not explained by it at all: the less of a sample is its own
work, the less it counts. The growth comes first (`growth_of`), as only prompts of different lengths show it, and the
line holds for what is known of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul, truediv
from statistics import median
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from fairlead.core.endpoint import USUAL_SLOWDOWN
from fairlead.core.prefill_growth import Estimate
from fairlead.statistics import solve, weighted_quantile

LEAST_PREFILL_TOKENS: Final = 256  # a shorter prompt shows fixed costs, not the cost of a token
_PASSES: Final = 5
_TOKENS: Final = 1  # columns of a fit
_ATTENDED: Final = 4
_OUTLIER: Final = 3.0  # usual residuals: a larger one weighs no more than this
_OF_MEDIAN: Final = 1.4826  # standard deviation of normal residuals over the median of their absolute values
_LEAST_SPREAD: Final = 0.02  # the least assumed standard deviation of a residual, relative
_SLOWDOWN_BELIEVED: Final = 3.0  # weight of the usual slowdown, in samples; it holds while loads are alike
_FIXED_DOUBTED: Final = 10.0  # weight, in samples, of assuming a fixed cost far below that of the tokens
_BELIEVED: Final = 0.01  # weight of the constants in force, in samples
_GROWTH_BELIEVED: Final = 0.01  # weight of the growth in force, in samples
_MOST_GROWTH: Final = 1e-3  # attention would take as long as all else after 1,000 tokens
_LEAST_WORK: Final = 0.5  # of its tokens, that chance may make of a prompt

_Amount = Annotated[float, Meta(ge=0, le=1e12)]
_Product = Annotated[float, Meta(ge=0, le=1e18)]


class Work(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One timed part of an answer, and the work done in it. An array in the state file: keep the fields' order."""

    took_ms: Annotated[float, Meta(gt=0, le=1e12)]
    requests: _Amount  # that began in it: 1 if it includes what each request costs once, else 0
    own_tokens: _Amount  # tokens of its own prompt that were computed
    other_tokens: _Amount  # tokens of other prompts that it waited for, as far as is known
    steps: _Amount  # decoding steps
    concurrent: _Amount  # other requests that decoded, summed over those steps
    unsure_tokens: _Amount  # tokens that may have been computed too: expected to be cached, or of another prompt
    trust: Annotated[float, Meta(ge=0, le=1)]  # in these counts; 1: the engine reported them
    ended_s: float  # by the router's clock
    own_attended: _Product = 0.0  # tokens of the prompt before each of its own, added up
    other_attended: _Product = 0.0


class Line(NamedTuple):
    """What the parts of an answer cost: a request, a token of a prompt, a decoding step; in ms."""

    fixed_ms: float
    prefill_ms: float
    alone_ms: float
    slowdown: float  # of a step, by each other request, as a share of its time alone; at 1 requests take turns
    growth: float = 0.0  # of what a token of a prompt costs, by each token before it

    def ms(self, work: Work) -> float:
        return self.sure_ms(work) + self.others_ms(work)

    def others_ms(self, work: Work) -> float:
        """What others' prompts took."""
        return self.prefill_ms * (work.other_tokens + self.growth * work.other_attended)

    def own_prefill_ms(self, work: Work) -> float:
        return self.prefill_ms * (work.own_tokens + self.growth * work.own_attended)

    def sure_ms(self, work: Work) -> float:
        """Without what others' prompts took."""
        return (
            self.fixed_ms * work.requests
            + self.own_prefill_ms(work)
            + self.alone_ms * (work.steps + self.slowdown * work.concurrent)
        )


class Ratios(NamedTuple):
    """By what factors an engine is slower than a line says: at prefill, and at decoding."""

    prefill: float = 1.0
    decode: float = 1.0

    def inverse(self) -> Ratios:
        return Ratios(1 / self.prefill, 1 / self.decode)

    def line(self, line: Line) -> Line:
        """The line of that engine."""
        return line._replace(prefill_ms=line.prefill_ms * self.prefill, alone_ms=line.alone_ms * self.decode)

    def work(self, work: Work) -> Work:
        """Work that takes by the line as long as `work` takes that engine."""
        if self == EQUAL:
            return work
        return Work(
            work.took_ms,
            work.requests,
            work.own_tokens * self.prefill,
            work.other_tokens * self.prefill,
            work.steps * self.decode,
            work.concurrent * self.decode,
            work.unsure_tokens * self.prefill,
            work.trust,
            work.ended_s,
            work.own_attended * self.prefill,
            work.other_attended * self.prefill,
        )


EQUAL: Final = Ratios()


class Fit(NamedTuple):
    """A line, and the relative error of two of its constants; infinite where the samples do not determine one."""

    line: Line
    prefill_error: float
    decode_error: float
    prefill_weight: float  # of the samples in which prompts were computed


def weight(work: Work, line: Line) -> float:
    """The weight of a sample; 1.0 is one that the engine reported in full, while it had no other work."""
    sure_ms = line.sure_ms(work)
    total_ms = sure_ms + line.others_ms(work) + line.prefill_ms * work.unsure_tokens
    if total_ms <= 0:
        return 0.0
    own_share = sure_ms / total_ms
    return work.trust * own_share * own_share


def fit(samples: Sequence[Work], recency: Sequence[float], before: Line) -> Fit:
    """The line with the least relative errors, robust to outliers, for the growth of `before`, whose other constants
    are believed as little as 1 % of a sample.

    `recency` holds a factor for each sample's weight. Needs one sample.
    """
    growth = before.growth
    columns = (
        [each.requests for each in samples],
        [each.own_tokens + each.other_tokens + growth * (each.own_attended + each.other_attended) for each in samples],
        [each.steps for each in samples],
        [each.concurrent for each in samples],
    )
    line, weights, scale_ms, spread = _robust(columns, samples, recency, before)
    prefill, decode = _information(columns, weights, scale_ms, line)
    long = any(each.own_tokens >= LEAST_PREFILL_TOKENS for each in samples)
    prefill_weight = sum(w for w, tokens in zip(weights, columns[_TOKENS], strict=True) if tokens > 0)
    return Fit(line, _error(spread, prefill) if long else math.inf, _error(spread, decode), prefill_weight)


def growth_of(samples: Sequence[Work], recency: Sequence[float], before: Line) -> Estimate:
    """The growth that the samples show, and how well they show it. As `fit`, with one constant more."""
    longest = max((each.own_attended / each.own_tokens for each in samples if each.own_tokens), default=0.0)
    columns = (
        [each.requests for each in samples],
        [each.own_tokens + each.other_tokens for each in samples],
        [each.steps for each in samples],
        [each.concurrent for each in samples],
        [each.own_attended + each.other_attended for each in samples],
    )
    line, weights, scale_ms, spread = _robust(columns, samples, recency, before)
    fixed, tokens, steps, concurrent, attended = columns
    decoding = [own + line.slowdown * others for own, others in zip(steps, concurrent, strict=True)]
    believed = _FIXED_DOUBTED, _BELIEVED, _BELIEVED, _GROWTH_BELIEVED
    matrix, beliefs = _equations((fixed, tokens, decoding, attended), weights, scale_ms, believed)
    variance = solve(matrix, [0.0, 0.0, 0.0, 1.0])[3]
    known = 1 / variance - beliefs[3] if variance > 0 else 0.0
    return Estimate(line.growth, spread / math.sqrt(known) / line.prefill_ms if known > 0 else math.inf, longest)


def _robust(
    columns: Sequence[Sequence[float]], samples: Sequence[Work], recency: Sequence[float], before: Line
) -> tuple[Line, Sequence[float], Sequence[float], float]:
    """The line, each sample's weight and the ms by which its error counts, and the usual relative error."""
    took_ms = [each.took_ms for each in samples]
    typical_ms = median(took_ms)
    # Nothing to compare with yet: errors are relative to what a sample took, so that an absurd one weighs nothing.
    scale_ms = [max(ms, 0.1 * typical_ms) for ms in took_ms]
    growth = before.growth
    line = _on_average(before, samples)
    weights = [r * weight(each, line) for each, r in zip(samples, recency, strict=True)]
    line = _solved(columns, took_ms, weights, scale_ms, line, growth)
    spread = 0.0
    for _ in range(_PASSES):
        scale_ms = [max(line.ms(each), 1e-9) for each in samples]
        missed = [math.log(took / ms) for took, ms in zip(took_ms, scale_ms, strict=True)]
        weights = [r * weight(each, line) for each, r in zip(samples, recency, strict=True)]
        spread = max(_LEAST_SPREAD, _OF_MEDIAN * weighted_quantile([abs(miss) for miss in missed], weights, 0.5))
        weights = [w / (1 + (miss / spread) ** 2) for w, miss in zip(weights, missed, strict=True)]
        most = _OUTLIER * spread
        bounded_ms = [ms * math.exp(min(max(miss, -most), most)) for ms, miss in zip(scale_ms, missed, strict=True)]
        line = _solved(columns, bounded_ms, weights, scale_ms, line, growth)
    return line, weights, scale_ms, spread


def _error(spread: float, information: float) -> float:
    return spread / math.sqrt(information) if information > 0 else math.inf


def _on_average(line: Line, samples: Sequence[Work]) -> Line:
    """`line`, scaled to fit the samples on average: only the proportion of its constants is assumed."""
    factor = math.exp(median([math.log(each.took_ms / max(line.ms(each), 1e-9)) for each in samples]))
    return line._replace(fixed_ms=0.0, prefill_ms=line.prefill_ms * factor, alone_ms=line.alone_ms * factor)


def _solved(
    columns: Sequence[Sequence[float]],
    took_ms: Sequence[float],
    weights: Sequence[float],
    scale_ms: Sequence[float],
    before: Line,
    growth: float,
) -> Line:
    """Ridge regression without negative constants. Errors count relative to `scale_ms`.

    Where there is a fifth column, of tokens attended, the growth is found with the rest; else it is as is assumed.
    """
    prefill_ms, alone_ms = before.prefill_ms, before.alone_ms
    assumed = (0.0, prefill_ms, alone_ms, USUAL_SLOWDOWN * alone_ms, growth * prefill_ms)
    believed = (1.0, _BELIEVED, _BELIEVED, _SLOWDOWN_BELIEVED, _GROWTH_BELIEVED)[: len(columns)]
    matrix, beliefs = _equations(columns, weights, scale_ms, believed)
    relative = [w / ms**2 for w, ms in zip(weights, scale_ms, strict=True)]
    vector = [
        sum(map(mul, map(mul, relative, column), took_ms)) + belief * value
        for column, belief, value in zip(columns, beliefs, assumed, strict=False)
    ]
    free = list(range(len(columns)))
    found = [0.0] * len(assumed)
    while free:
        solved = solve([[matrix[i][j] for j in free] for i in free], [vector[i] for i in free])
        if min(value for i, value in zip(free, solved, strict=True) if i != _ATTENDED) >= 0:
            for i, value in zip(free, solved, strict=True):
                found[i] = value
            break
        negative = {i for i, value in zip(free, solved, strict=True) if value < 0 and i != _ATTENDED}
        if _TOKENS in negative and _ATTENDED in free:  # no prompt is computed by attention alone
            negative = {_ATTENDED}
        free = [i for i in free if i not in negative]
    fixed_ms, prefill_ms, alone_ms, each_ms, attended_ms = found
    prefill_ms, alone_ms = prefill_ms or before.prefill_ms, alone_ms or before.alone_ms
    if len(columns) > _ATTENDED:
        most = max(map(truediv, columns[_ATTENDED], (max(tokens, 1.0) for tokens in columns[_TOKENS])))
        growth = max(-_LEAST_WORK / max(most, 1.0), min(attended_ms / prefill_ms, _MOST_GROWTH))
    return Line(fixed_ms, prefill_ms, alone_ms, min(each_ms / alone_ms, 1.0), growth)


def _information(
    columns: Sequence[Sequence[float]], weights: Sequence[float], scale_ms: Sequence[float], line: Line
) -> tuple[float, float]:
    """What the samples determine of prefill and of decoding, in equivalent samples of that alone."""
    fixed, tokens, steps, concurrent = columns
    decoding = [own + line.slowdown * others for own, others in zip(steps, concurrent, strict=True)]
    matrix, beliefs = _equations((fixed, tokens, decoding), weights, scale_ms, (_FIXED_DOUBTED, _BELIEVED, _BELIEVED))
    known = []
    for i, value in ((1, line.prefill_ms), (2, line.alone_ms)):
        unit = [float(j == i) for j in range(3)]
        variance = solve([row.copy() for row in matrix], unit)[i]
        known.append((1 / variance - beliefs[i]) * value**2 if variance > 0 else 0.0)
    return known[0], known[1]


def _equations(
    columns: Sequence[Sequence[float]], weights: Sequence[float], scale_ms: Sequence[float], believed: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    """The normal equations' matrix; its diagonal includes the prior of each constant, in samples that it is worth."""
    relative = [w / ms**2 for w, ms in zip(weights, scale_ms, strict=True)]
    count, total = sum(weights), sum(relative)
    weighted = [list(map(mul, relative, column)) for column in columns]
    matrix = [[sum(map(mul, one, other)) for other in columns] for one in weighted]
    # A constant without samples keeps its assumed value; the fixed cost of a request is 0 until samples show it.
    beliefs = [share * matrix[i][i] / count if count and matrix[i][i] else 1.0 for i, share in enumerate(believed)]
    beliefs[0] = believed[0] * total / count if count else 1.0
    for i, belief in enumerate(beliefs):
        matrix[i][i] += belief
    return matrix, beliefs
