"""A static split: prompts are prefilled in one place and decoded in another, and their KV travels between."""

from __future__ import annotations

import pytest

from fairlead.policies import build_policy
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.network import Link
from fairlead.tools.replay.split import SplitSimulation
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World
from tests.tools.replay.test_simulation import traffic
from tests.tools.replay.world import reported, small_world, talk, turn, workload

LINK = Link(setup_ms=20.0, bytes_per_token=1e5, bytes_per_s=1e9)  # 0.1 ms a token


def run(sent: Workload, kv_tokens: int = 4096) -> tuple[list[AttemptRecord], SplitSimulation]:
    answers: list[AttemptRecord] = []
    specs = small_world(4, kv_tokens).endpoints
    simulation = SplitSimulation(
        World(specs[:2]), specs[2:], LINK, sent, build_policy("lpwl", {}), seed=0, sink=answers.append
    )
    simulation.run()
    return answers, simulation


def test_the_first_token_comes_before_the_kv_travels_and_the_others_after() -> None:
    (answer,), _ = run(workload(talk(0, turn(160, 11))))
    rtt_ms, prefill_ms, step_ms = 0.5, 1.0 + 160 * 0.5, 1.0 + 5.0 + 0.5
    one_more_token_ms = 1.0 + 0.5  # of the prompt: the first token of the answer, which the decoding engine must read
    assert answer.first_token_ms == pytest.approx(rtt_ms + prefill_ms)
    assert answer.total_ms == pytest.approx(rtt_ms + prefill_ms + 20.0 + 16.0 + one_more_token_ms + 9 * step_ms)


def test_every_turn_is_answered_once_by_engines_that_do_only_their_part() -> None:
    sent = traffic(2)
    answers, simulation = run(sent)
    wanted = [(n, t, 1) for n, each in enumerate(sent.conversations) for t in range(len(each.turns))]
    assert sorted(reported(answers)) == wanted
    prefilled = sum(engine.counters.generated for engine in simulation.engines[:2])
    decoded = sum(engine.counters.generated for engine in simulation.engines[2:])
    tokens = sum(each.output_tokens for each in answers)
    assert (prefilled, decoded) == (len(answers), tokens - len(answers))
    assert all(endpoint.load.inflight_requests == 0 for endpoint in simulation.endpoints)


def test_a_decoding_engine_without_room_computes_the_prompt_again_and_that_is_counted() -> None:
    sent = workload(*(talk(0.0, turn(700, 200, of=n)) for n in range(8)))
    _, roomy = run(sent, kv_tokens=16_384)
    _, tight = run(sent, kv_tokens=1024)
    assert roomy.recomputed == 0
    assert tight.recomputed > 0
    assert sum(engine.counters.prompt_computed for engine in tight.engines[2:]) >= tight.recomputed * 600


def test_the_link_takes_its_set_up_and_the_bytes() -> None:
    assert LINK.takes_ms(1000) == pytest.approx(20.0 + 100.0)
