"""One sidecar of a replay: the router that serves, and what it learns and reads of the engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from fairlead.core.budget import ObservationBudget
from fairlead.core.learning import Learner
from fairlead.core.load import Load
from fairlead.core.policy import Policy
from fairlead.core.pool import Pool
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.reported import EngineReport, aged, following
from fairlead.core.router import Router
from fairlead.tools.replay.network import RttSeries
from fairlead.tools.replay.world import EngineSpec, World
from fairlead.tools.simulate.engine import Engine

_STALE_S: Final = 1.0  # after which a report that could not be renewed is stale


class Sidecar:
    """It has endpoints, an index, sessions and a learner of its own; engines are the world's."""

    def __init__(self, world: World, policy: Policy, block_tokens: int, seed: str) -> None:
        observation = world.observation
        self._world = world
        self.endpoints = world.router_endpoints()
        index = PrefixIndex()
        self.router = Router(
            Pool(self.endpoints, world.routes), policy, fallbacks=0, rng=Random(f"policy {seed}"), index=index
        )
        for spec in world.endpoints:
            index.set_capacity(spec.address, int(spec.kv_tokens * observation.index_capacity) // block_tokens)
        self.learner = Learner()
        self.budget = ObservationBudget(observation.answers_per_second, observation.messages_per_second)
        self._lost = Random(f"lost reports {seed}")

    def scrape(
        self, engines: Sequence[Engine], report_of: Callable[[Engine, EngineSpec, float], EngineReport], now_ms: float
    ) -> None:
        """Read the engines' reports, of which the world may lose some."""
        lost, now_s = self._world.observation.lost_reports, now_ms / 1e3
        for endpoint, engine, spec in zip(self.endpoints, engines, self._world.endpoints, strict=False):
            if lost and self._lost.random() < lost:
                endpoint.reported(aged(endpoint.report, now_s, _STALE_S))
                continue
            endpoint.reported(following(endpoint.report, report_of(engine, spec, now_ms), _STALE_S))

    def probe(self, rtts: Sequence[RttSeries], now_ms: float) -> None:
        alpha = self._world.observation.rtt_alpha
        for endpoint, rtt in zip(self.endpoints, rtts, strict=True):
            endpoint.rtt_ms += alpha * (rtt.at(now_ms) - endpoint.rtt_ms)

    def learn(self) -> None:
        """Put in force what answers taught."""
        self.learner.settle(self.router.pool)
        self.router.others.look(self.endpoints)

    def peers_reported(self, sent: list[list[Load]], own: int, now_s: float) -> None:
        """`sent` is the load of each sidecar at each endpoint; `own` is which of them this one is."""
        for place, endpoint in enumerate(self.endpoints):
            load = Load()
            for which, loads in enumerate(sent):
                if which != own:
                    load = load.plus(loads[place])
            endpoint.peers_reported(load, now_s)
