"""load_aware_exclude_tried: least_request among the models tried least often.

The control that the LAAR paper lacks: its gain mixes capability with not asking the same model twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("load_aware_exclude_tried")
class LoadAwareExcludeTried(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        return Ranking(least_first(candidates, lambda c: c.attempts * 1e9 + c.inflight_requests, random_tie=rng))
