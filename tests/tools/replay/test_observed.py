"""A world from a decision log: engines come back as they were, from traffic that they served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import polars as pl
import pytest

from fairlead.decision_log import files
from fairlead.errors import UserError
from fairlead.policies import build_policy
from fairlead.tools.decisions import read_decisions, trace_rows
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.logged import LoggedSimulation
from fairlead.tools.replay.network import constant
from fairlead.tools.replay.observed import observed, world_yaml
from fairlead.tools.replay.traces import read_trace
from fairlead.tools.replay.workload import Conversation, Turn
from fairlead.tools.replay.world import EngineSpec, Observation, Retries, World
from fairlead.tools.replay.world_file import read_world
from fairlead.tools.simulate.parameters import EngineParameters
from tests.command import fairlead
from tests.tools.replay.world import BLOCK, talk, turn, workload

TRUE = EngineParameters(
    prefill_ms_per_token=0.3, decode_ms_per_step=9.0, decode_ms_per_sequence=0.6, step_overhead_ms=1.0
)
ALL = Observation(answers_per_second=1e9, messages_per_second=1e9)


def pool(*engines: EngineParameters, observation: Observation = ALL) -> World:
    """The first engine is near, the others are far."""
    endpoints = tuple(
        EngineSpec(f"10.0.0.{n}:8000", region="far" if n else "near", engine=engine, kv_tokens=100_000)
        for n, engine in enumerate(engines)
    )
    return World(endpoints, regions={"near": constant(2.0), "far": constant(80.0)}, observation=observation)


def log_of(
    world: World, folder: Path, *, talks: int = 150, gap_ms: float = 700.0, seed: int = 1
) -> tuple[pl.DataFrame, list[AttemptRecord]]:
    """What `serve` would have written of growing conversations, which keep the engines busy."""
    rng = Random(seed)
    now_ms = 0.0
    conversations: list[Conversation] = []
    for number in range(talks):
        now_ms += rng.expovariate(1 / gap_ms)
        tokens = rng.randrange(200, 2000)
        turns: list[Turn] = []
        for _ in range(rng.randrange(1, 6)):
            turns.append(turn(tokens, rng.randrange(20, 120), of=number, think_ms=1e3 * rng.random() if turns else 0.0))
            tokens += rng.randrange(100, 1500)
        conversations.append(talk(now_ms, *turns, session=f"s{number}"))
    answers: list[AttemptRecord] = []
    policy = build_policy("least_request", {})
    run = LoggedSimulation(world, workload(*conversations), policy, seed=seed, sink=answers.append)
    run.run()
    files.write(folder, run.rows)
    return read_decisions(folder), answers


def near(found: EngineParameters, true: EngineParameters, share: float) -> bool:
    """A prompt token, and a step with one request and with ten."""

    def costs(of: EngineParameters) -> tuple[float, ...]:
        return of.prefill_ms_per_token, of.decoding_step_ms(1), of.decoding_step_ms(10)

    return costs(found) == pytest.approx(costs(true), rel=share)


def test_engines_that_were_never_idle_come_back_from_the_log(tmp_path: Path) -> None:
    log, _ = log_of(pool(TRUE, TRUE, TRUE), tmp_path)
    found = observed(log, tmp_path)
    assert [near(engine.parameters, TRUE, 0.03) for engine in found.engines] == [True] * 3
    assert [engine.rtt_ms for engine in found.engines] == pytest.approx([2.0, 80.0, 80.0])


def test_an_engine_of_another_kind_has_constants_of_its_own_and_equal_ones_have_their_model_s(tmp_path: Path) -> None:
    slow = replace(TRUE, prefill_ms_per_token=0.9, decode_ms_per_step=25.0)
    log, _ = log_of(pool(TRUE, TRUE, TRUE, slow), tmp_path, talks=300)
    *alike, other = observed(log, tmp_path).engines
    assert near(other.parameters, slow, 0.06)
    assert all(near(engine.parameters, TRUE, 0.06) for engine in alike)


def test_what_a_request_costs_by_itself_is_seen_where_engines_are_idle(tmp_path: Path) -> None:
    """As of vLLM on a CPU, whose decoding step is hardly more than its overhead."""
    true = replace(TRUE, request_overhead_ms=40.0)
    log, _ = log_of(pool(true, true), tmp_path, gap_ms=8000.0)
    assert observed(log, tmp_path).engines[0].parameters.request_overhead_ms == pytest.approx(31.0, abs=3.0)  # 41 - 10


def test_with_a_third_of_the_answers_observed_it_comes_near(tmp_path: Path) -> None:
    """The others are in the log with their ends alone, and with what the router took for cached."""
    log, _ = log_of(
        pool(TRUE, TRUE, observation=Observation(answers_per_second=0.5)), tmp_path, gap_ms=1000.0, talks=400
    )
    assert log["output_tokens"].null_count() > 0.6 * log.height
    found = observed(log, tmp_path).engines[0]
    assert near(found.parameters, TRUE, 0.15)
    assert found.error < 0.05


def test_too_few_answers_say_what_to_set(tmp_path: Path) -> None:
    log, _ = log_of(pool(TRUE), tmp_path, talks=10)
    with pytest.raises(
        UserError, match=r'of "m", \d+ answers of more than 16 tokens were observed in full, and 100 are needed'
    ):
        observed(log, tmp_path)


def test_a_route_is_one_in_the_world_too(tmp_path: Path) -> None:
    world = msgspec.structs.replace(pool(TRUE), routes={"auto": ("m",)}, asked="auto", retries=Retries())
    log, _ = log_of(world, tmp_path)
    found = observed(log, tmp_path)
    assert dict(found.routes) == {"auto": ("m",)}
    path = tmp_path / "world.yaml"
    path.write_text(world_yaml(found, 5000, ["from the test"]))
    read = read_world(path)
    assert (read.asked, read.endpoints[0].kv_tokens) == ("auto", 5000)
    assert near(read.endpoints[0].engine, found.engines[0].parameters, 0.001)


def test_conversations_come_back_from_the_log_and_take_as_long_in_its_world(tmp_path: Path) -> None:
    log, answers = log_of(pool(TRUE, TRUE), tmp_path)
    trace, _ = trace_rows(log, tmp_path)
    assert trace["think_s"].count() == sum(answer.turn > 0 for answer in answers)
    (tmp_path / "world.yaml").write_text(world_yaml(observed(log, tmp_path), 100_000, []))
    again: list[AttemptRecord] = []
    policy = build_policy("least_request", {})
    read = read_trace(tmp_path)
    assert read.block_tokens == 4 * BLOCK
    LoggedSimulation(read_world(tmp_path / "world.yaml"), read, policy, seed=0, sink=again.append).run()
    mean_ms, again_ms = (sum(each.total_ms for each in of) / len(of) for of in (answers, again))
    assert again_ms == pytest.approx(mean_ms, rel=0.1)


@pytest.mark.slow
def test_calibrate_makes_a_world_of_decisions_that_replay_takes(tmp_path: Path) -> None:
    log_of(pool(TRUE, TRUE), tmp_path / "decisions")
    world = tmp_path / "world.yaml"
    ran = fairlead("calibrate", tmp_path / "decisions", "--out", world, "--kv-tokens", "100000")
    assert ran.returncode == 0, ran.stderr
    ran = fairlead("replay", tmp_path / "decisions", "--world", world, "--out", tmp_path / "out", "--seeds", "1")
    assert ran.returncode == 0, ran.stderr


def test_the_size_of_caches_is_no_question_for_a_table_of_times(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("prompt_size\n")
    ran = fairlead("calibrate", tmp_path / "times.csv", "--kv-tokens", "5")
    assert (ran.returncode, "--kv-tokens is for a folder of decisions" in ran.stderr) == (2, True)
