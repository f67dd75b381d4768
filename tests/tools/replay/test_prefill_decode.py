"""A pool with roles in a replay: the router's own rule says whose prompt another engine computes."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.core.load import Load
from fairlead.policies import build_policy
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.network import Link
from fairlead.tools.replay.prefill_decode import PrefillDecodeSimulation
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World
from tests.tools.replay.test_simulation import traffic
from tests.tools.replay.world import reported, small_world, talk, turn, workload

LINK = Link(setup_ms=1.0, bytes_per_token=1e5, bytes_per_s=1e10)  # 0.01 ms a token


def run(
    sent: Workload, link: Link = LINK, kv_tokens: int = 16_384
) -> tuple[list[AttemptRecord], PrefillDecodeSimulation]:
    answers: list[AttemptRecord] = []
    specs = [
        msgspec.structs.replace(spec, role="decode" if place else "prefill")
        for place, spec in enumerate(small_world(2, kv_tokens).endpoints)
    ]
    world = World(tuple(specs), link=link)
    simulation = PrefillDecodeSimulation(world, sent, build_policy("fairlead", {}), seed=0, sink=answers.append)
    simulation.run()
    return answers, simulation


def test_a_prompt_that_would_stall_an_answer_is_computed_elsewhere_and_its_kv_travels() -> None:
    first, second = talk(0, turn(160, 400)), talk(500, turn(1600, 5, of=1))
    answers, simulation = run(workload(first, second))
    assert simulation.splits == 1
    (short,) = [each for each in answers if each.prompt_tokens == 1600]
    prefill_ms, transfer_ms = 1.0 + 1600 * 0.5, 1.0 + 16.0
    took_ms = 0.5 + 0.5 + prefill_ms + transfer_ms
    block_ms, step_ms = 16 * 0.5, 8.0  # the last block is computed again, in a step that may wait for another
    assert took_ms < short.first_token_ms <= took_ms + block_ms + 2 * step_ms + 2
    prefiller, decoder = simulation.engines
    assert (prefiller.counters.generated, decoder.counters.generated) == (1, 405)
    assert decoder.counters.prompt_computed < 160 + 16 + 1


def test_an_answer_is_not_interrupted_by_a_prompt_that_is_computed_elsewhere() -> None:
    sent = workload(talk(0, turn(160, 400)), talk(500, turn(1600, 5, of=1)))
    fast, _ = run(sent)
    slow, alone = run(sent, Link(setup_ms=1.0, bytes_per_token=1e5, bytes_per_s=1e6))
    assert alone.splits == 0

    def took_ms(answers: list[AttemptRecord]) -> float:
        return next(each.total_ms for each in answers if each.prompt_tokens == 160)

    assert took_ms(slow) > took_ms(fast) + 700


def test_every_turn_is_answered_once_and_nothing_is_left() -> None:
    sent = traffic(3)
    answers, simulation = run(sent)
    wanted = [(n, t, 1) for n, each in enumerate(sent.conversations) for t in range(len(each.turns))]
    assert sorted(reported(answers)) == wanted
    assert simulation.splits > 0
    assert [endpoint.own for endpoint in simulation.endpoints] == [Load(), Load()]
    assert {each.endpoint for each in answers} == {1}


def test_a_decoder_without_room_leaves_the_kv_where_it_was_computed_and_computes_none_of_it() -> None:
    first, second = talk(0, turn(1600, 400)), talk(500, turn(1600, 5, of=1))
    answers, simulation = run(workload(first, second), kv_tokens=2_048)
    assert simulation.splits == 1
    prefiller, decoder = simulation.engines
    (waits,) = [each for each in answers if each.output_tokens == 5]
    (long,) = [each for each in answers if each.output_tokens == 400]
    assert waits.sent_ms + waits.first_token_ms > long.sent_ms + long.total_ms
    assert decoder.counters.prompt_computed <= 1600 + 16
    assert prefiller.pool.used == decoder.pool.used == 0


@pytest.mark.parametrize("role", ["both", "decode"])
def test_without_anyone_to_prefill_nothing_is_split(role: str) -> None:
    specs = tuple(msgspec.structs.replace(spec, role=role) for spec in small_world(2, 16_384).endpoints)
    simulation = PrefillDecodeSimulation(
        World(specs), traffic(3), build_policy("fairlead", {}), seed=0, sink=lambda _: None
    )
    simulation.run()
    assert simulation.splits == 0
