"""What stands before the router in a replay: nothing below saturation, and an order above it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fairlead.admission.admission import Rules
from fairlead.admission.limits import BandRules, QueueRules
from fairlead.core.objective import Slo
from fairlead.policies import build_policy
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.gated import (
    FairleadGate,
    GatedSimulation,
    Gatekeeper,
    LlmDFlowControl,
    LlmDShedding,
    NoGate,
    StaticLimit,
    Tenancy,
)
from fairlead.tools.replay.workload import Workload
from tests.tools.replay.world import small_world, talk, turn, workload

RULES = Rules(QueueRules(bands={0: BandRules("chat"), -1: BandRules("batch", share=0.8)}))
GATES: dict[str, Callable[[GatedSimulation], Gatekeeper]] = {
    "fairlead": partial(FairleadGate, rules=RULES),
    "static": partial(StaticLimit, per_engine=4, longest_wait_s=30.0),
    "llm-d flow control": partial(LlmDFlowControl, longest_wait_s=30.0),
    "llm-d shedding": LlmDShedding,
}


def played(
    gate: Callable[[GatedSimulation], Gatekeeper], work: Workload
) -> tuple[list[AttemptRecord], GatedSimulation]:
    rows: list[AttemptRecord] = []
    world, policy = small_world(), build_policy("fairlead", {})
    simulation = GatedSimulation(world, work, policy, gate, Tenancy(), seed=0, sink=rows.append)
    simulation.run()
    return rows, simulation


@pytest.mark.parametrize("name", GATES)
def test_below_saturation_every_request_goes_as_without_a_gate(name: str) -> None:
    work = workload(*(talk(400.0 * number, turn(200)) for number in range(20)))
    rows, simulation = played(GATES[name], work)
    assert rows == played(NoGate, work)[0]
    assert simulation.waited == 0


@pytest.mark.parametrize("name", GATES)
def test_above_it_each_request_still_ends_once_and_leaves_no_load(name: str) -> None:
    work = workload(*(talk(1.0 * number, turn(1000, 50, of=1000 * number)) for number in range(120)))
    rows, simulation = played(GATES[name], work)
    assert sorted(row.conversation for row in rows) == list(range(120))
    assert all(endpoint.load.inflight_requests == 0 for endpoint in simulation.endpoints)
    assert simulation.admission.queue.requests == 0


def test_chat_waits_less_than_batch() -> None:
    work = workload(*(talk(1.0 * number, turn(1000, 50, of=1000 * number)) for number in range(120)))
    rows, simulation = played(GATES["fairlead"], work)
    first_token_ms: dict[int, list[float]] = {0: [], -1: []}
    for row in rows:
        if row.why != "refused":
            level = simulation.tenancy.level(simulation.tenancy.tenant(row.conversation))
            first_token_ms[level].append(row.first_token_ms)
    assert simulation.waited > 20
    assert sum(first_token_ms[0]) / len(first_token_ms[0]) < sum(first_token_ms[-1]) / len(first_token_ms[-1])


def test_with_objectives_that_refuse_what_is_served_comes_in_time() -> None:
    work = workload(*(talk(1.0 * number, turn(1000, 50, of=1000 * number)) for number in range(120)))
    slos = {0: Slo(3000.0, refuses=True), -1: Slo(3000.0, refuses=True)}
    rows, simulation = played(partial(FairleadGate, rules=RULES, slos=slos), work)
    served = [row.first_token_ms for row in rows if row.why != "refused"]
    plain = [row.first_token_ms for row in played(GATES["fairlead"], work)[0]]
    in_time = sum(each <= 3000.0 for each in served)
    assert 0 < len(served) < 120
    assert in_time > 0.8 * len(served)
    assert in_time >= sum(0 <= each <= 3000.0 for each in plain)
    assert simulation.admission.queue.requests == 0
