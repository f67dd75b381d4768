"""Small worlds for decisions: endpoints by name, and one request at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from fairlead.core.capability import Capability
from fairlead.core.facts import RequestFacts, session_key
from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.core.pool import Endpoint, Pool
from fairlead.core.router import Decision, Router
from fairlead.policies import build_policy


def always(probability: float) -> Capability:
    """A model that is right with the same probability everywhere."""
    return Capability({language: (probability,) * len(BUCKETS) for language in LANGUAGES})


class World:
    """A pool with a policy. Every model is also reachable by the route `any`."""

    def __init__(self, policy: str = "fairlead", *, seed: int = 0, **parameters: Any) -> None:
        self._endpoints: list[Endpoint] = []
        self._policy = build_policy(policy, parameters)
        self._seed = seed
        self._router: Router | None = None

    def endpoint(self, address: str, model: str = "m", *, right: float = 1.0, **fields: Any) -> Endpoint:
        endpoint = Endpoint(address, model, capability=always(right), **fields)
        self._endpoints.append(endpoint)
        return endpoint

    @property
    def router(self) -> Router:
        if self._router is None:
            routes: Mapping[str, Sequence[str]] = {"any": list(dict.fromkeys(e.model for e in self._endpoints))}
            self._router = Router(Pool(self._endpoints, routes), self._policy, fallbacks=2, rng=Random(self._seed))
        return self._router

    def pick(self, model: str = "any", **facts: Any) -> Decision:
        decision = self.router.decide(request(model, **facts))
        assert isinstance(decision, Decision)
        return decision

    def pick_and_end(self, model: str = "any", **facts: Any) -> str:
        """The address chosen for a request that ends before the next one comes."""
        decision = self.pick(model, **facts)
        decision.ticket.release()
        return decision.addresses[0]


def request(
    model: str = "any", *, tokens: int = 1000, attempted: Sequence[str] = (), session: str | None = None, **more: Any
) -> RequestFacts:
    return RequestFacts(
        model=model,
        tokens=tokens,
        max_output_tokens=more.get("max_output_tokens", 100),
        language=more.get("language", "en"),
        bucket=more.get("bucket", 0),
        attempted=tuple(attempted),
        session=session_key(session.encode()) if session else None,
    )
