"""One sidecar of a replay: the router that serves, and what it learns and is told of the engines."""

from __future__ import annotations

from random import Random

from fairlead.core.budget import ObservationBudget
from fairlead.core.learning import Learner
from fairlead.core.load import Load
from fairlead.core.policy import Policy
from fairlead.core.pool import Pool
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.router import Router
from fairlead.tools.replay.world import World


class Sidecar:
    """It has endpoints, an index, sessions and a learner of its own; engines are the world's."""

    def __init__(self, world: World, policy: Policy, block_tokens: int, seed: str) -> None:
        observation = world.observation
        self.endpoints = world.router_endpoints()
        index = PrefixIndex()
        self.router = Router(
            Pool(self.endpoints, world.routes), policy, fallbacks=0, rng=Random(f"policy {seed}"), index=index
        )
        for spec in world.endpoints:
            index.set_capacity(spec.address, int(spec.kv_tokens * observation.index_capacity) // block_tokens)
        self.learner = Learner()
        self.budget = ObservationBudget(observation.answers_per_second, observation.messages_per_second)
        self.lost = Random(f"lost reports {seed}")

    def peers_reported(self, sent: list[list[Load]], own: int) -> None:
        """`sent` is the load of each sidecar at each endpoint; `own` is which of them this one is."""
        for place, endpoint in enumerate(self.endpoints):
            load = Load()
            for which, loads in enumerate(sent):
                if which != own:
                    load = load.plus(loads[place])
            endpoint.peers_reported(load)
