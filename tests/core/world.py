"""Small worlds for decisions: endpoints by name, and one request at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from fairlead.core.capability import Capability
from fairlead.core.endpoint import Endpoint, EndpointSpec
from fairlead.core.facts import RequestFacts, session_key
from fairlead.core.in_flight import InFlight
from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.core.load import Load
from fairlead.core.policy import Decision
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.policies import build_policy


def always(probability: float) -> Capability:
    """A model that is right with the same probability everywhere."""
    return Capability({language: (probability,) * len(BUCKETS) for language in LANGUAGES})


_SPEC = frozenset(EndpointSpec.__struct_fields__)
_LOAD = frozenset(Load.__struct_fields__)


def make_endpoint(address: str, model: str = "m", *, peers: Load | None = None, **fields: Any) -> Endpoint:
    """An endpoint as configured, with any of its fields, and with load in flight (as `own`) by the names of `Load`."""
    endpoint = Endpoint(EndpointSpec(address, model, **{k: v for k, v in fields.items() if k in _SPEC}))
    endpoint.take(Load(**{k: v for k, v in fields.items() if k in _LOAD}))
    if peers is not None:
        endpoint.peers_reported(peers, 0.0)
    if "identity" in fields:
        endpoint.identified(fields.pop("identity"))
    for name in fields.keys() - _SPEC - _LOAD:
        setattr(endpoint.health if name == "healthy" else endpoint, name, fields[name])
    return endpoint


def carries(endpoint: Endpoint, **load: int) -> None:
    """`endpoint` has this load from now on, whoever sent it; fields of `Load` that are not named stay."""
    endpoint.load = msgspec.structs.replace(endpoint.load, **load)


class World:
    """A pool with a policy. Every model is also reachable by the route `any`."""

    def __init__(self, policy: str = "fairlead", *, seed: int = 0, **parameters: Any) -> None:
        self._endpoints: list[Endpoint] = []
        self._policy = build_policy(policy, parameters)
        self._seed = seed
        self._router: Router | None = None

    def endpoint(self, address: str, model: str = "m", *, right: float = 1.0, **fields: Any) -> Endpoint:
        endpoint = make_endpoint(address, model, **{"capability": always(right)} | fields)
        self._endpoints.append(endpoint)
        return endpoint

    @property
    def router(self) -> Router:
        if self._router is None:
            routes: Mapping[str, Sequence[str]] = {"any": list(dict.fromkeys(e.model for e in self._endpoints))}
            self._router = Router(Pool(self._endpoints, routes), self._policy, fallbacks=2, rng=Random(self._seed))
        return self._router

    def pick(self, model: str = "any", **facts: Any) -> Decision:
        return self.admit(model, **facts).decision

    def admit(self, model: str = "any", **facts: Any) -> InFlight:
        in_flight = self.router.admit(request(model, **facts))
        assert isinstance(in_flight, InFlight)
        return in_flight

    def pick_and_end(self, model: str = "any", **facts: Any) -> str:
        """The address chosen for a request that ends before the next one comes."""
        in_flight = self.admit(model, **facts)
        in_flight.withdraw(0.0)
        return in_flight.address


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
        adapter=more.get("adapter", ""),
    )
