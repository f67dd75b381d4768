"""The world that a trace is replayed in: engines, the network between, what the router is told, and who is right.

A description only; `replay.simulation` makes it live. All times are of the simulated clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.core.capability import NEUTRAL, Capability
from fairlead.core.pool import Endpoint
from fairlead.replay.network import RttSeries, constant
from fairlead.simulate.parameters import EngineParameters

DEFAULT_KV_TOKENS = 500_000  # of an 8B model on one 80 GB card, as the prefix index takes it


class EndpointSpec(msgspec.Struct, frozen=True):
    """One engine. Its block size is the trace's, as nothing finer is known of what prompts share."""

    address: str
    model: str = "m"
    region: str = ""
    engine: EngineParameters = EngineParameters()
    kv_tokens: int = DEFAULT_KV_TOKENS

    def parameters(self, block_tokens: int) -> EngineParameters:
        blocks = max(1, self.kv_tokens // block_tokens)
        return replace(self.engine, block_size=block_tokens, num_blocks=blocks)


_Interval = Annotated[float, Meta(ge=0.001)]


class Observation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the router hears of its engines; the defaults are those of `observe` in the configuration."""

    scrape_s: _Interval = 0.25  # between reads of what engines report of themselves
    rtt_s: _Interval = 5.0  # between measurements of the round trip
    rtt_alpha: Annotated[float, Meta(gt=0, le=1)] = 0.3  # weight of the newest
    messages_per_second: Annotated[float, Meta(ge=0)] = (
        20.0  # of answers observed in full, which show first tokens and teach constants
    )


class Retries(msgspec.Struct, frozen=True):
    """Who answers rightly, and how often a client asks again until it is right.

    `right` is the truth by model, `believed` what the router takes it for. Deterministic decoding gives the same answer
    again: then a model that was wrong once is wrong for this request each time.
    """

    right: Mapping[str, Capability] = {}
    believed: Mapping[str, Capability] = {}
    most_attempts: int = 1
    deterministic: bool = True


class World(msgspec.Struct, frozen=True):
    """A pool as it is. A request that names no model asks for `asked`, which is a model or a route."""

    endpoints: tuple[EndpointSpec, ...]
    regions: Mapping[str, RttSeries] = {}
    routes: Mapping[str, tuple[str, ...]] = {}
    asked: str = "m"
    observation: Observation = Observation()
    retries: Retries = Retries()

    def rtt(self, region: str) -> RttSeries:
        return self.regions.get(region) or _NEAR

    def router_endpoints(self) -> list[Endpoint]:
        """The engines as the router knows them: the constants that an operator measured on an idle one."""
        return [
            Endpoint(
                spec.address,
                spec.model,
                prefill_ms_per_token=spec.engine.prefill_ms_per_token,
                decode_ms_per_token=spec.engine.decoding_step_ms(1),
                max_model_len=spec.engine.max_model_len,
                capability=self.retries.believed.get(spec.model, NEUTRAL),
                region=spec.region,
                rtt_ms=self.rtt(spec.region).at(0.0),
            )
            for spec in self.endpoints
        ]


_NEAR = constant(0.5)


def alike(count: int, engine: EngineParameters | None = None, kv_tokens: int = DEFAULT_KV_TOKENS) -> World:
    """`count` equal engines in one place."""
    used = engine if engine is not None else EngineParameters()
    return World(tuple(EndpointSpec(f"10.0.0.{n}:8000", engine=used, kv_tokens=kv_tokens) for n in range(1, count + 1)))
