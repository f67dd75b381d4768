"""Adapters in a replay: the router's own code decides, the simulated engines load."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from fairlead.policies import build_policy
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Conversation, Turn, Workload
from fairlead.tools.replay.world import alike
from fairlead.tools.simulate.parameters import EngineParameters

NAMES = tuple("abcdefgh")


def ran(adapter_weight: float) -> tuple[Simulation, list[AttemptRecord]]:
    """Eight adapters in turn over two engines of four slots, one request each 300 ms."""
    rng, rows = Random(1), list[AttemptRecord]()
    conversations = tuple(
        Conversation(300.0 * number, (Turn(400, 30, model=rng.choice(NAMES)),)) for number in range(240)
    )
    world = msgspec.structs.replace(alike(2, EngineParameters(adapter_slots=4, adapter_load_ms=400.0)), adapters=NAMES)
    policy = build_policy("fairlead", {"adapter_weight": adapter_weight})
    simulation = Simulation(world, Workload("adapters", conversations, 64), policy, seed=0, sink=rows.append)
    simulation.run()
    return simulation, rows


def test_each_adapter_is_loaded_once_where_all_have_room_and_again_and_again_by_a_rule_that_is_blind() -> None:
    aware, blind = ran(1.0)[0], ran(0.0)[0]
    assert sum(engine.adapters.loads for engine in aware.engines) <= 2 * len(NAMES)
    assert sum(engine.adapters.loads for engine in blind.engines) > 50


def test_what_a_load_takes_is_learned_from_first_tokens() -> None:
    simulation, rows = ran(0.0)
    speeds = [endpoint.speed for endpoint in simulation.endpoints]
    assert [speed.adapter_load_ms for speed in speeds] == pytest.approx([400.0] * 2, rel=0.1)
    assert [speed.prefill_ms_per_token for speed in speeds] == pytest.approx([0.1] * 2, rel=0.2)
    assert {row.model for row in rows} == set(NAMES)
