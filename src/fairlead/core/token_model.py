"""How many tokens a model's engines make of each kind of text, learned from the prompt tokens that they report.

A prompt's tokens are a sum over the kinds of `core.text_kinds`: estimated tokens of each kind of text, messages, a head
that every prompt has, tools, and images. One answer gives one sum, and every prompt mixes the kinds in other shares, so
all rates are fitted together: ridge regression, where a rate that no sample shows stays what it was measured at before.
An engine that counts otherwise than its model's others neither crowds their samples out nor outweighs them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from math import isfinite
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fairlead.core.text_kinds import KINDS, NUMBER, SCRIPTS, TEXT_KINDS
from fairlead.statistics import solve

Features = tuple[tuple[int, float], ...]  # kinds, by number, and how much of each

SAMPLES_OF_A_KIND: Final = 12  # kept, of prompts that are mostly of this kind
LEAST_TOKENS: Final = 64  # of a shorter prompt the template is most
_BOUNDS: Final = (0.1, 10.0)  # of a rate over what was measured; beyond them the engine's count is wrong
_NOISE: Final = 0.04  # of a prompt's tokens
_MEDIA_NOISE: Final = 0.1  # more, of a prompt with media
_NOISE_TOKENS: Final = 6.0
_OUTLIER: Final = 3.0  # times the noise; what misses by more counts less
_PASSES: Final = 3  # in which it counts less

# What one of each kind has before anything is learned, and by how much models differ.
_BEFORE: Final = {
    "message": (2.0, 2.0),  # for the marks around it
    "head": (8.0, 30.0),
    "tools": (60.0, 200.0),  # a template's instructions on how to call them
    "image": (1000.0, 1000.0),
    "image_area": (1.0, 0.7),  # for 28 x 28 pixels, as Qwen2-VL has
    "sized_image": (2.0, 300.0),
    "clip": (1000.0, 1000.0),
}
_SPREAD: Final = {"prose": 0.3, "latin": 0.5, "code": 0.4, "numbers": 0.6, "symbols": 1.0} | dict.fromkeys(SCRIPTS, 1.0)
_MEANS: Final = tuple([1.0 if kind in TEXT_KINDS else _BEFORE[kind][0] for kind in KINDS])
_SPREADS: Final = tuple([_SPREAD.get(kind, 0.4) if kind in TEXT_KINDS else _BEFORE[kind][1] for kind in KINDS])
_MEDIA: Final = frozenset(NUMBER[kind] for kind in ("image", "sized_image", "clip"))
_HEAD: Final = NUMBER["head"]

Rates = tuple[float, ...]  # tokens for one of each of KINDS
RATES_BEFORE: Final[Rates] = _MEANS
"""Of a model whose answers were not seen yet."""


class TokenSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One prompt, and its tokens as the engine counts them. An array in the state file: keep the fields' order."""

    features: Annotated[list[tuple[Annotated[int, Meta(ge=0, lt=len(KINDS))], Annotated[float, Meta(ge=0, le=1e12)]]],
                        Meta(max_length=len(KINDS))]  # fmt: skip
    tokens: Annotated[int, Meta(gt=0, le=10**12)]


def count(features: Features | Sequence[tuple[int, float]], rates: Sequence[float]) -> float:
    """Tokens of a prompt."""
    return sum([amount * rates[kind] for kind, amount in features])


class TokenModel:
    """`add` keeps what one answer showed; `settle`, off the request path, puts what follows from it in force."""

    __slots__ = ("_samples", "_unsettled", "rates")

    def __init__(self) -> None:
        self.rates: Rates = RATES_BEFORE
        # By the kind that most of the prompt is of, with the engine that counted.
        self._samples: dict[int, deque[tuple[str, TokenSample]]] = {}
        self._unsettled = False

    @property
    def samples(self) -> list[TokenSample]:
        return [sample for kept in self._samples.values() for _, sample in kept]

    @property
    def kinds(self) -> set[int]:
        """Those that the samples have any of."""
        return {kind for sample in self.samples for kind, amount in sample.features if amount > 0}

    def add(self, features: Features, tokens: int, engine: str = "") -> None:
        """A prompt of these `features` had `tokens`, as `engine` counts."""
        expected = count(features, RATES_BEFORE)
        if expected < LEAST_TOKENS or not _BOUNDS[0] * expected <= tokens <= _BOUNDS[1] * expected:
            return
        most = max(features, key=lambda each: each[1] * _MEANS[each[0]])[0]
        kept = self._samples.setdefault(most, deque())
        kept.append((engine, TokenSample(list(features), tokens)))
        if len(kept) > SAMPLES_OF_A_KIND:
            _drop_one(kept)
        self._unsettled = True

    def settle(self) -> None:
        """Fit again where something came since: up to 4 ms."""
        if not self._unsettled:
            return
        self._unsettled = False
        samples = self.samples
        noises = [_noise(sample) for sample in samples]
        rates = _fit(samples, noises)
        for _ in range(_PASSES):
            missed = [
                abs(count(s.features, rates) - s.tokens) / (_OUTLIER * n) for s, n in zip(samples, noises, strict=True)
            ]
            if max(missed) <= 1:
                break
            rates = _fit(samples, [n * max(1.0, miss) for n, miss in zip(noises, missed, strict=True)])
        self.rates = rates


def _drop_one(kept: deque[tuple[str, TokenSample]]) -> None:
    """The oldest of the engine that has most."""
    engines = Counter(engine for engine, _ in kept)
    most = max(engines.values())
    del kept[next(place for place, (engine, _) in enumerate(kept) if engines[engine] == most)]


def mean_rates(all_rates: Sequence[Rates]) -> Rates:
    """For a route, whose models may count differently."""
    return tuple([sum(each) / len(all_rates) for each in zip(*all_rates, strict=True)]) if all_rates else RATES_BEFORE


def _noise(sample: TokenSample) -> float:
    """In tokens. A count that is far too small must not pass for one that is exact."""
    share = _NOISE + (_MEDIA_NOISE if any(kind in _MEDIA for kind, _ in sample.features) else 0.0)
    return share * max(sample.tokens, count(sample.features, RATES_BEFORE)) + _NOISE_TOKENS


def _fit(samples: Sequence[TokenSample], noises: Sequence[float]) -> Rates:
    """All rates that the samples show. One that comes out below zero is zero, and the others are fitted again."""
    shown = {kind for sample in samples for kind, amount in sample.features if amount > 0}
    zero: set[int] = set()
    while True:
        rates = _solved(samples, noises, sorted(shown - zero), zero)
        below = {kind for kind in shown - zero if rates[kind] < 0}
        if not below:
            return tuple(rates)
        zero |= below


def _solved(
    samples: Sequence[TokenSample], noises: Sequence[float], fitted: Sequence[int], zero: Collection[int]
) -> list[float]:
    means = [0.0 if kind in zero else mean for kind, mean in enumerate(_MEANS)]
    row_of = {kind: row for row, kind in enumerate(fitted)}
    matrix = [[0.0] * len(fitted) for _ in fitted]
    vector = [0.0] * len(fitted)
    for sample, noise in zip(samples, noises, strict=True):
        missing = (sample.tokens - count(sample.features, means)) / noise
        scaled = [
            (row_of[kind], amount * _SPREADS[kind] / noise)
            for kind, amount in sample.features
            if amount > 0 and kind in row_of
        ]
        for i, a in scaled:
            vector[i] += a * missing
            row = matrix[i]
            for j, b in scaled:
                row[j] += a * b
    for i in range(len(fitted)):
        matrix[i][i] += 1.0
    rates = list(means)
    for kind, found in zip(fitted, solve(matrix, vector), strict=True):
        mean = _MEANS[kind]
        rate = mean + found * _SPREADS[kind]
        if not isfinite(rate):
            continue
        rates[kind] = min(max(rate, _BOUNDS[0] * mean), _BOUNDS[1] * mean) if kind < len(TEXT_KINDS) else rate
    return rates
