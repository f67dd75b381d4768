"""session_affinity: rendezvous hash of a key and the endpoint, so that a key moves only when its endpoint goes.

The key is the session; or, with `key: prompt`, the first 1 KB of the prompt, about the 256 tokens that GORGO's baseline
hashes: it sends everything to one endpoint where a long system prompt is shared. Requests without a key (no session, or
a prompt shorter than one block) go to a random endpoint. Load, cache and earlier attempts are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import Final, Literal

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.prefix import BLOCK_BYTES
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register

_KEY_BLOCKS: Final = 1024 // BLOCK_BYTES


@register("session_affinity")
class SessionAffinity(Rule, frozen=True):
    key: Literal["session", "prompt"] = "session"

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        key = request.session if self.key == "session" else _prompt_key(request.prefix)
        if key is None:
            return Ranking(least_first(candidates, lambda _: 0.0, random_tie=rng))
        return Ranking(least_first(candidates, lambda c: _weight(key, c.address)), "affinity")


def _prompt_key(prefix: Sequence[int]) -> bytes | None:
    """The hash of the first blocks, or of as many as the prompt has."""
    return prefix[min(_KEY_BLOCKS, len(prefix)) - 1].to_bytes(8) if prefix else None


def _weight(key: bytes, address: str) -> float:
    return float(int.from_bytes(blake2b(address.encode(), key=key, digest_size=6).digest()))
