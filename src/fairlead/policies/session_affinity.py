"""session_affinity: rendezvous hash of session and endpoint, so that a session moves only when its endpoint goes.

Requests without a session go to a random endpoint. Load, cache and earlier attempts are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random

from fairlead.core.facts import RequestFacts
from fairlead.core.pool import Candidate
from fairlead.core.ranking import Ranking, least_first
from fairlead.policies.registry import Rule, register


@register("session_affinity")
class SessionAffinity(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        session = request.session
        if session is None:
            return Ranking(least_first(candidates, lambda _: 0.0, random_tie=rng))
        return Ranking(least_first(candidates, lambda c: _weight(session, c.address)), "affinity")


def _weight(session: bytes, address: str) -> float:
    return float(int.from_bytes(blake2b(address.encode(), key=session, digest_size=6).digest()))
