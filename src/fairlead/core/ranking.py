"""Candidates ranked by a score, and how ties are broken."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from heapq import nsmallest
from operator import itemgetter
from random import Random
from typing import Final

from fairlead.core.candidates import Candidate
from fairlead.core.endpoint import Endpoint
from fairlead.core.policy import Ranked
from fairlead.core.rendezvous import turns_by

_ROUNDING: Final = 1 + 1e-9  # more than the sum of two costs is rounded by


def least_first(
    candidates: Sequence[Candidate],
    key: Callable[[Candidate], float],
    *,
    random_tie: Random | None = None,
) -> list[Ranked]:
    """Candidates by rising `key`; ties go to the endpoint least recently chosen, or at random where the rule says so.

    A fixed order would herd equal requests on one replica.
    """
    ties = None if random_tie is None else [random_tie.random() for _ in candidates]
    return in_order(candidates, [key(c) for c in candidates], ties)


def in_order(
    candidates: Sequence[Candidate],
    scores: Sequence[float],
    ties: Sequence[float] | None = None,
    *,
    tie_width: float = 0.0,
    spreads: Sequence[float] | None = None,
) -> list[Ranked]:
    """As `least_first`, of scores that are already known; `ties` decide instead of when an endpoint was last chosen.

    Those within `tie_width` of the least are equals too: the noise of measured times would herd requests as a fixed
    order does. `spreads` are by how much each score may be too high, beyond `tie_width`: a candidate that may be as
    good as the best is its equal.
    """
    if ties is None:
        ties = [c.last_chosen for c in candidates]
    scored = sorted(zip(scores, ties, range(len(scores)), strict=True))
    if spreads is not None:
        limit = scored[0][0] + tie_width
        equal = [each for each in scored if each[0] - spreads[each[2]] <= limit]
        if len(equal) > 1:
            equal.sort(key=itemgetter(1))
            scored = equal + [each for each in scored if each[0] - spreads[each[2]] > limit]
    elif tie_width > 0.0:
        equals = bisect_right(scored, scored[0][0] + tie_width, key=itemgetter(0))
        if equals > 1:
            scored[:equals] = sorted(scored[:equals], key=itemgetter(1))
    return [Ranked(candidates[position], score) for score, _, position in scored]


def first_in_order(
    scores: Sequence[float],
    endpoints: Sequence[Endpoint],
    count: int,
    *,
    tie_width: float,
    spreads: Sequence[float] | None,
    block: int | None,
    least: float | None = None,
) -> list[int]:
    """The first `count` positions of `in_order`'s ranking; `least` is the least score where more are compared.

    With a `block` of the prompt equals take turns by it (`core.rendezvous`), and not by when each was last chosen.
    """
    smallest = nsmallest(count, scores)
    limit, bound = (smallest[0] if least is None else least) + tie_width, smallest[-1]
    reach = max(bound, limit if spreads is None else (limit + max(spreads)) * _ROUNDING)
    near = [i for i, score in enumerate(scores) if score <= reach]  # all that may come in question, in one pass
    if spreads is not None:
        equal = [i for i in near if scores[i] - spreads[i] <= limit]
    else:
        equal = near if bound <= limit else [i for i in near if scores[i] <= limit]
    taken = len(equal)
    if block is None:
        turns = [endpoints[i].last_chosen for i in equal]
    else:
        turns = turns_by([endpoints[i].key for i in equal], block)
    if taken > count:
        last = nsmallest(count, turns)[-1]
        equal = [i for i, turn in zip(equal, turns, strict=True) if turn <= last]
        turns = [turn for turn in turns if turn <= last]
    order = [i for _, _, i in sorted([(turn, scores[i], i) for turn, i in zip(turns, equal, strict=True)])[:count]]
    if taken < count:
        others = {i for i in near if scores[i] <= bound}.difference(equal)
        rest = sorted([(scores[i], endpoints[i].last_chosen, i) for i in others])
        order += [i for _, _, i in rest[: count - taken]]
    return order
