"""The world that a trace is replayed in: engines, the network, what the router observes, and which models are right.

A description only; `tools.replay.simulation` runs it. All times are of the simulated clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.core.capability import NEUTRAL, Capability
from fairlead.core.endpoint import Endpoint, EndpointSpec, Role
from fairlead.core.reported import EngineIdentity
from fairlead.tools.replay.disturbances import Foreign, Pace
from fairlead.tools.replay.network import Link, RttSeries, constant
from fairlead.tools.simulate.parameters import EngineParameters

DEFAULT_KV_TOKENS = 500_000  # an 8B model on one 80 GB card, as the prefix index assumes


class EngineSpec(msgspec.Struct, frozen=True):
    """One engine. Its block size is the trace's, because shared prefixes are known no finer."""

    address: str
    model: str = "m"
    region: str = ""
    engine: EngineParameters = EngineParameters()
    kv_tokens: int = DEFAULT_KV_TOKENS
    role: Role = "both"

    def parameters(self, block_tokens: int) -> EngineParameters:
        blocks = max(1, self.kv_tokens // block_tokens)
        return replace(self.engine, block_size=block_tokens, num_blocks=blocks)


_Interval = Annotated[float, Meta(ge=0.001)]


class Observation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the router observes its engines; the defaults are those of `observe` in the configuration, or of `serve`."""

    scrape_s: _Interval = 0.25  # between reads of engine reports
    rtt_s: _Interval = 5.0  # between measurements of the round trip
    rtt_alpha: Annotated[float, Meta(gt=0, le=1)] = 0.3  # weight of the newest
    answers_per_second: Annotated[float, Meta(ge=0)] = 20.0  # observed in full: they show first tokens and constants
    messages_per_second: Annotated[float, Meta(ge=0)] = 500.0  # that these may have: one for each token
    learn_s: _Interval = 1.0  # between times at which what answers taught is put in force
    lost_reports: Annotated[float, Meta(ge=0, le=1)] = 0.0  # share of engine reports that cannot be read
    token_error: Annotated[float, Meta(ge=0, le=3)] = 0.0  # sd of the log of estimated over true tokens of a prompt
    index_capacity: Annotated[float, Meta(gt=0)] = 1.0  # assumed over true capacity of an engine's cache
    kinds_configured: bool = True  # each engine's own times; else all have those of their model's first one


class Retries(msgspec.Struct, frozen=True):
    """Who answers rightly, and how often a client asks again until it is right.

    `right` is the true capability by model, `believed` what the router assumes. With deterministic decoding, a model
    that was wrong once is wrong for this request every time.
    """

    right: Mapping[str, Capability] = {}
    believed: Mapping[str, Capability] = {}
    most_attempts: int = 1
    deterministic: bool = True


class Sidecars(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many route to the same engines, each for its share of the requests, and how they know of each other."""

    count: Annotated[int, Meta(ge=1, le=64)] = 1
    load_every_s: _Interval | None = None  # between reports of load to each other; None: they do not report any


class World(msgspec.Struct, frozen=True):
    """A pool as it is. A request that names no model asks for `asked`, which is a model or a route."""

    endpoints: tuple[EngineSpec, ...]
    regions: Mapping[str, RttSeries] = {}
    routes: Mapping[str, tuple[str, ...]] = {}
    asked: str = "m"
    observation: Observation = Observation()
    retries: Retries = Retries()
    pace: Pace = Pace()
    foreign: Foreign = Foreign()
    sidecars: Sidecars = Sidecars()
    adapters: tuple[str, ...] = ()  # that every engine can load, and turns may ask for
    link: Link = Link()  # by which KV goes from those that prefill to those that decode

    @property
    def has_roles(self) -> bool:
        return any(spec.role != "both" for spec in self.endpoints)

    def rtt(self, region: str) -> RttSeries:
        return self.regions.get(region) or _NEAR

    def router_endpoints(self) -> list[Endpoint]:
        """The engines as the router knows them: with constants measured on an idle engine of each."""
        first = {engine.model: engine.engine for engine in reversed(self.endpoints)}
        configured = [
            (engine.engine if self.observation.kinds_configured else first[engine.model], first[engine.model])
            for engine in self.endpoints
        ]
        known = [
            Endpoint(
                EndpointSpec(
                    engine.address,
                    engine.model,
                    prefill_ms_per_token=own.prefill_ms_per_token,
                    decode_ms_per_token=own.decoding_step_ms(1),
                    prefill_ratio=own.prefill_ms_per_token / of_model.prefill_ms_per_token,
                    decode_ratio=own.decoding_step_ms(1) / of_model.decoding_step_ms(1),
                    max_model_len=engine.engine.max_model_len,
                    capability=self.retries.believed.get(engine.model, NEUTRAL),
                    region=engine.region,
                    kv_connector="nixl" if self.has_roles else "",
                    role=engine.role,
                    transfer_ms_per_token=self.link.takes_ms(1) - self.link.takes_ms(0),
                )
            )
            for engine, (own, of_model) in zip(self.endpoints, configured, strict=True)
        ]
        for endpoint, engine in zip(known, self.endpoints, strict=True):
            endpoint.rtt_ms = self.rtt(engine.region).at(0.0)
            if self.adapters:
                models = (engine.model, *self.adapters)
                endpoint.identified(EngineIdentity(models=models, adapters=self.adapters))
        return known


_NEAR = constant(0.5)


def alike(count: int, engine: EngineParameters | None = None, kv_tokens: int = DEFAULT_KV_TOKENS) -> World:
    """`count` equal engines in one place."""
    used = engine if engine is not None else EngineParameters()
    return World(tuple(EngineSpec(f"10.0.0.{n}:8000", engine=used, kv_tokens=kv_tokens) for n in range(1, count + 1)))
