"""Tuning on recorded traffic: what it finds, and what it refuses to call a gain."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import msgspec
import pytest
import yaml

from fairlead.config import PolicyConfig
from fairlead.decision_log import files
from fairlead.errors import UserError
from fairlead.policies import build_policy
from fairlead.statistics import quantile
from fairlead.tools.decisions import read_decisions
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.logged import LoggedSimulation
from fairlead.tools.replay.network import constant
from fairlead.tools.replay.observed import observed, world_yaml
from fairlead.tools.replay.run import Traffic
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.traces import read_trace
from fairlead.tools.replay.world import EngineSpec, Observation, World
from fairlead.tools.replay.world_file import read_world
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.tune.offline import Slice, TuningData, TuningResult, compare, part_of, tune
from fairlead.tuning.weights import BOXES
from tests.command import fairlead

ENGINE = EngineParameters(prefill_ms_per_token=0.1)
FAR_MS = 100.0
WORLD = World(
    (
        EngineSpec("10.0.0.1:8000", engine=ENGINE),
        EngineSpec("10.0.0.2:8000", engine=ENGINE, region="far"),
        EngineSpec("10.0.0.3:8000", engine=ENGINE, region="far"),
    ),
    regions={"far": constant(FAR_MS)},
)
WORLD_FILE = f"""
engines: {{e: {{prefill_ms_per_token: 0.1}}}}
pool: [{{engine: e}}, {{count: 2, engine: e, region: far}}]
regions: {{far: {FAR_MS}}}
"""


def write_trace(
    folder: Path, *, requests: int = 800, gap_s: float = 0.12, seed: int = 0, output_tokens: int = 10
) -> Path:
    """Prompts of 1,000 tokens, more often than one engine can serve and less often than three can."""
    rng = Random(seed)
    now_s, lines = 0.0, []
    for _ in range(requests):
        now_s += rng.expovariate(1 / gap_s)
        row = {"at_s": round(now_s, 4), "prompt_tokens": rng.randrange(500, 1500), "output_tokens": output_tokens}
        lines.append(json.dumps(row))
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def found_by(trace: Path, *, proposals: int = 5, **start: float) -> TuningResult:
    ground = TuningData((Traffic(str(trace)),), WORLD, seeds=(0,))
    return tune("gorgo", build_policy("gorgo", start), BOXES["gorgo"], ground, proposals=proposals, seed=0)


@pytest.fixture(scope="module")
def nearest_only(tmp_path_factory: pytest.TempPathFactory) -> TuningResult:
    """From weights under which nearly all goes to the one near engine."""
    return found_by(write_trace(tmp_path_factory.mktemp("trace")), rtt_weight=32.0, queue_weight=0.1)


def test_from_weights_that_overload_the_nearest_engine_it_finds_better_ones(nearest_only: TuningResult) -> None:
    assert nearest_only.best["rtt_weight"] < nearest_only.start["rtt_weight"]
    assert nearest_only.held_out is not None
    assert nearest_only.held_out.is_gain
    assert nearest_only.held_out.total.mean < 0.9


def test_the_log_of_a_pool_alone_is_enough_to_find_better_weights(tmp_path: Path) -> None:
    """As an operator does it: the world and the traffic are both from the log."""
    trace, log = read_trace(write_trace(tmp_path, output_tokens=20)), tmp_path / "decisions"
    start = {"rtt_weight": 32.0, "queue_weight": 0.1}
    world = msgspec.structs.replace(WORLD, observation=Observation(answers_per_second=1e9, messages_per_second=1e9))
    served = LoggedSimulation(world, trace, build_policy("gorgo", start), seed=0, sink=lambda _: None)
    served.run()
    files.write(log, served.rows)
    (tmp_path / "world.yaml").write_text(world_yaml(observed(read_decisions(log), log), 500_000, ()))
    ground = TuningData((Traffic(str(log)),), read_world(tmp_path / "world.yaml"), seeds=(0,))
    found = tune("gorgo", build_policy("gorgo", start), BOXES["gorgo"], ground, proposals=5, seed=0)
    assert found.held_out is not None
    assert found.held_out.is_gain
    times_ms = []
    for weights in (found.best, start):
        answers: list[AttemptRecord] = []
        Simulation(WORLD, trace, build_policy("gorgo", dict(weights)), seed=1, sink=answers.append).run()
        times_ms.append(quantile([answer.total_ms for answer in answers], 0.95))
    assert times_ms[0] < 0.9 * times_ms[1]


def test_with_further_seeds_a_slice_has_the_same_conversations_at_the_same_times_in_another_order(
    tmp_path: Path,
) -> None:
    rows = []
    for number in range(240):
        common = {"session": f"s{number // 2}", "prompt_tokens": 100 + number, "output_tokens": 5}
        rows += [{"at_s": float(number), **common}, {"think_s": 1.0, **common}]
    path = tmp_path / "talks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    recorded, place = part_of(Traffic(str(path)), 0, 0.9, "tuning")
    reordered, same = part_of(Traffic(str(path)), 1, 0.9, "tuning")
    assert same == place
    assert [each.start_ms for each in reordered.conversations] == [each.start_ms for each in recorded.conversations]
    assert reordered.conversations != recorded.conversations
    for slice_ in set(place):
        here = [number for number, each in enumerate(place) if each == slice_]
        one, other = ([of.conversations[number] for number in here] for of in (recorded, reordered))
        assert {each.turns for each in one} == {each.turns for each in other}
        for session in {each.session for each in other}:
            turns = [each.turns[0].prompt_tokens for each in other if each.session == session]
            assert turns == sorted(turns)


def test_every_proposal_is_kept_with_what_it_was_compared_with(nearest_only: TuningResult) -> None:
    assert [proposal.number for proposal in nearest_only.proposals] == list(range(1, 6))
    incumbent = nearest_only.start
    for proposal in nearest_only.proposals:
        assert proposal.incumbent == incumbent
        incumbent = proposal.candidate if proposal.accepted else incumbent
    assert incumbent == nearest_only.best


def test_the_same_seed_finds_the_same(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, requests=680)
    assert found_by(trace, proposals=2) == found_by(trace, proposals=2)


def test_where_weights_do_not_matter_no_gain_is_reported(tmp_path: Path) -> None:
    """One request at a time, all engines near: every choice is as good."""
    trace = write_trace(tmp_path, requests=800, gap_s=10.0)
    world = World(tuple(EngineSpec(f"10.0.0.{n}:8000", engine=ENGINE) for n in range(1, 4)))
    ground = TuningData((Traffic(str(trace)),), world, seeds=(0,))
    found = tune("fairlead", build_policy("fairlead", {}), BOXES["fairlead"], ground, proposals=5, seed=0)
    assert found.held_out is None
    assert found.best == found.start


@pytest.mark.parametrize(
    ("gains", "losses", "is_gain"),
    [
        ([0.10, 0.11, 0.09, 0.10], [0.0, 0.01, -0.01, 0.0], True),
        ([0.10, -0.10, 0.20, -0.15], [0.0, 0.0, 0.0, 0.0], False),
        ([-0.10, -0.11, -0.09, -0.10], [0.0, 0.0, 0.0, 0.0], False),
        ([0.10, 0.11, 0.09, 0.10], [0.20, 0.21, 0.19, 0.20], False),
    ],
    ids=["sure", "the interval includes none", "worse", "the first token pays for it"],
)
def test_a_gain_is_one_only_beyond_its_interval_and_within_the_guard(
    gains: list[float], losses: list[float], is_gain: bool
) -> None:
    before = [Slice(7.0, 5.0)] * len(gains)
    after = [Slice(7.0 - gain, 5.0 + loss) for gain, loss in zip(gains, losses, strict=True)]
    assert compare(before, after).is_gain is is_gain


def test_a_trace_too_short_to_judge_by_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too few to tell weights apart"):
        found_by(write_trace(tmp_path, requests=300))


def test_the_command_writes_weights_to_copy_every_proposal_and_a_picture(tmp_path: Path) -> None:
    write_trace(tmp_path)
    (tmp_path / "world.yaml").write_text(WORLD_FILE)
    done = fairlead(
        *("tune", "trace.jsonl", "--world", "world.yaml", "--policy", "gorgo:rtt_weight=32:queue_weight=0.1"),
        *("--proposals", "4", "--seeds", "1", "--jobs", "1"),
        folder=tmp_path,
    )
    assert (done.returncode, done.stdout.startswith("Gain: ")) == (0, True), done.stderr
    section = yaml.safe_load((tmp_path / "tune" / "weights.yaml").read_text())["policy"]
    assert section["rtt_weight"] < 32
    assert PolicyConfig.model_validate(section).name == "gorgo"
    rows = (tmp_path / "tune" / "proposals.jsonl").read_text().splitlines()
    assert [json.loads(row)["number"] for row in rows] == list(range(1, 5))
    assert (tmp_path / "tune" / "tune.png").read_bytes().startswith(b"\x89PNG")
    assert len(re.findall(r"^\| \d+ \|", (tmp_path / "tune" / "tune.md").read_text(), re.MULTILINE)) == 4


def test_without_a_gain_no_weights_are_written_and_old_ones_are_taken_away(tmp_path: Path) -> None:
    write_trace(tmp_path, requests=800, gap_s=10.0)
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "weights.yaml").write_text("policy: {name: gorgo}\n")
    done = fairlead("tune", "trace.jsonl", "--proposals", "1", "--seeds", "1", "--jobs", "1", folder=tmp_path)
    assert (done.returncode, "No gain" in done.stdout) == (0, True), done.stderr
    assert sorted(path.name for path in (tmp_path / "tune").iterdir()) == ["proposals.jsonl", "tune.md", "tune.png"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("none.jsonl",), "none.jsonl: cannot be read"),
        (("trace.jsonl", "--policy", "lpwl"), 'policy "lpwl" has no weights to tune'),
        (("trace.jsonl", "--policy", "fairlead:queue_weight=9"), "queue_weight 9 is outside the box"),
        (("trace.jsonl",), "too few to tell weights apart"),
    ],
)
def test_wrong_use_ends_with_two_and_one_sentence(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    write_trace(tmp_path, requests=20)
    done = fairlead("tune", *arguments, folder=tmp_path)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "tune").exists()
