"""What a policy is: a rule that puts candidates in order, best first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from fairlead.core.cost import CostTerms
from fairlead.core.facts import RequestFacts
from fairlead.core.pool import Candidate

if TYPE_CHECKING:
    from fairlead.core.feedback import Tuner

Why = Literal["cost", "affinity", "migration", "fallback"]


class Ranked(msgspec.Struct, frozen=True, gc=False):
    candidate: Candidate
    score: float  # least is best; in the policy's own unit


class Ranking(NamedTuple):
    """Candidates, best first, and what the first of them was chosen for."""

    order: Sequence[Ranked]
    why: Why = "cost"


class Policy(Protocol):
    """A routing rule. It keeps nothing between two calls: all it knows is in its arguments and its parameters.

    What a rule learns from is kept by its tuner, which replaces the rule by one with other parameters.
    """

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        """Every candidate, best first; `candidates` is never empty."""
        ...

    def explain(self, candidate: Candidate) -> CostTerms | None:
        """The terms of a candidate's cost, or None for a rule that does not reckon in milliseconds."""
        ...

    def tuner(self, rng: Random) -> Tuner | None:
        """A new tuner of this rule's parameters, or None for a rule that stays as it is."""
        ...


def least_first(
    candidates: Sequence[Candidate],
    key: Callable[[Candidate], float],
    *,
    random_tie: Random | None = None,
    tie_width: float = 0.0,
) -> list[Ranked]:
    """Candidates by rising `key`; ties go to the endpoint least recently chosen, or at random where the rule says so.

    A fixed order would herd equal requests on one replica, and so would the noise of measured times: those whose key is
    within `tie_width` of the least are equals too.
    """
    ties = None if random_tie is None else [random_tie.random() for _ in candidates]
    return in_order(candidates, [key(c) for c in candidates], ties, tie_width=tie_width)


def in_order(
    candidates: Sequence[Candidate],
    scores: Sequence[float],
    ties: Sequence[float] | None = None,
    *,
    tie_width: float = 0.0,
) -> list[Ranked]:
    """As `least_first`, of scores that are already known; `ties` decide instead of when an endpoint was last chosen."""
    if ties is None:
        ties = [c.last_chosen for c in candidates]
    scored = sorted(zip(scores, ties, range(len(scores)), strict=True))
    if tie_width > 0.0:
        equals = bisect_right(scored, scored[0][0] + tie_width, key=itemgetter(0))
        if equals > 1:
            scored[:equals] = sorted(scored[:equals], key=itemgetter(1))
    return [Ranked(candidates[position], score) for score, _, position in scored]
