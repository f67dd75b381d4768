"""Splits: a name that stands for several models, each of which gets its share of the requests by weight.

Unlike a route, where the expected cost chooses, a split is what an operator wants: a canary, an experiment, another
name. A session keeps its model for as long as the weights stay, in every sidecar that has the same weights: a
conversation neither changes its model nor loses its cache. Raising one weight moves as few sessions as it can.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from random import Random

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.core.pool import ANY_MODEL, Pool

Weights = Sequence[tuple[str, int]]  # of models, above 0


class Split:
    """One weighted choice. Raises ValueError without a model of a weight above 0."""

    def __init__(self, weights: Weights) -> None:
        self.weights = tuple((model, weight) for model, weight in weights if weight > 0)
        if not self.weights:
            raise ValueError("a split needs a model with a weight above 0")
        self._bounds = list(accumulate(weight for _, weight in self.weights))

    @property
    def models(self) -> tuple[str, ...]:
        """Each once, the heaviest first."""
        total: dict[str, int] = {}
        for model, weight in self.weights:
            total[model] = total.get(model, 0) + weight
        return tuple(sorted(total, key=lambda model: -total[model]))

    def at(self, point: float) -> str:
        """The model at `point`, from 0 to below 1."""
        index = bisect_right(self._bounds, point * self._bounds[-1])
        return self.weights[min(index, len(self.weights) - 1)][0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Split) and self.weights == other.weights

    def __hash__(self) -> int:
        return hash(self.weights)


class Rewrites(msgspec.Struct, frozen=True):
    """Splits by the name that a request asks for; `of_others` is for names that have none, and are not `kept`."""

    by_name: Mapping[str, Split] = {}
    of_others: Split | None = None
    kept: frozenset[str] = frozenset()

    def under(self, own: Mapping[str, Split], kept: Iterable[str]) -> Rewrites:
        """These, and over them splits of one's `own`; names in `kept` have no others."""
        kept = frozenset(kept)
        by_name = {name: split for name, split in self.by_name.items() if name not in kept}
        return Rewrites({**by_name, **own}, self.of_others, kept)

    @property
    def are_any(self) -> bool:
        return bool(self.by_name) or self.of_others is not None

    def model(self, asked: str, pool: Pool, session: bytes, rng: Random) -> str:
        """The model or route that a request for `asked` goes to; `asked` itself where nothing rewrites it.

        A model that no healthy endpoint serves gets nothing while another one of the split has some: its sessions are
        drawn again among the others.
        """
        split = self.by_name.get(asked)
        if split is None:
            split = None if asked in self.kept else self.of_others
        if split is None or asked == ANY_MODEL:
            return asked
        point = xxh3_64_intdigest(session) / 2**64 if session else rng.random()
        model = split.at(point)
        if len(split.weights) == 1 or _has_endpoints(pool, model):
            return model
        others = [each for each in split.weights if _has_endpoints(pool, each[0])]
        return Split(others).at(point) if others else model


def _has_endpoints(pool: Pool, model: str) -> bool:
    return any(endpoint.health.healthy for endpoint in pool.serving(model))


NO_REWRITES = Rewrites()
