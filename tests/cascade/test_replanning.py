"""A plan follows the traffic: detected, planned again, put in force without touching anything else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from fairlead.cascade.planner.plan import Plan
from fairlead.cascade.planner.search import Aim
from fairlead.cascade.planner.settings import CascadeSettings
from fairlead.cascade.replanning import Replanner, accepted, advice, sampled, with_thresholds
from fairlead.cascade.rows import ProfileRow
from fairlead.cascade.serving.samples import SampleFile
from fairlead.errors import UserError
from tests.cascade.world import profile, settings

CONFIG = """\
routes:
  auto: [small, large]  # stays
  answer:
    cascade: [small, large]
    thresholds: [70]  # planned
    judge: {function: judges:exact}
"""


WORLD = settings(8, 4.0, models=2, max_pp=1)


def rows(requests: int, *, harder: float = 0.0, start: int = 0) -> list[ProfileRow]:
    """`harder`: points that the small model's scores lose. Answers are short, so that they are simulated quickly."""
    sample = profile(requests, models=2, answers=0.1)
    lost = (harder, 0.0)
    return [
        ProfileRow(
            request=f"{start + row}.0",
            model=model,
            prompt_tokens=int(sample.prompt_tokens[row]),
            output_tokens=int(sample.output_tokens[row, column]),
            latency_ms=1.0,
            score=max(0.0, float(sample.score[row, column]) - lost[column]),
        )
        for row in range(requests)
        for column, model in enumerate(sample.models)
    ]


@pytest.fixture(scope="module")
def planned() -> Plan:
    return replanner(WORLD, rows(200)).plan(rows(200), 4.0).allocation


def replanner(world: CascadeSettings, planned: Sequence[ProfileRow]) -> Replanner:
    return Replanner(world, Aim(least_quality=55), planned)


def test_a_rate_that_doubles_for_three_windows_is_planned_for() -> None:
    planner = replanner(WORLD, rows(200))
    window = rows(50)
    assert [planner.seen(window, requests, 60.0) for requests in (480, 240, 480, 480)] == [[]] * 4
    assert planner.seen(window, 480, 60.0) == ["requests a second: 4 -> 8"]
    made = planner.plan(rows(200), 8.0)
    assert made.allocation.rate_per_s == 8.0
    assert planner.seen(window, 480, 60.0) == [], "the new plan is for this rate"


def test_scores_that_fall_send_more_requests_on_at_the_same_quality(planned: Plan) -> None:
    planner = replanner(WORLD, rows(200))
    harder = rows(60, harder=30.0)
    told = [planner.seen(harder, 240, 60.0) for _ in range(3)][-1]
    assert any("score of small" in line for line in told)
    after = planner.plan(rows(200, harder=30.0), 4.0).thresholds
    assert after.stages[1].share > planned.stages[1].share


def test_thresholds_are_planned_for_the_replicas_that_are_there() -> None:
    document = WORLD.model_dump()
    for model, tp in zip(document["models"], (2, 4), strict=True):
        model["replicas"] = [{"count": 1, "tp": tp}]
    made = replanner(CascadeSettings.model_validate(document), rows(200)).plan(rows(200), 2.0)
    assert [stage.gpus for stage in made.thresholds.stages] == [2, 4]


def test_only_the_thresholds_of_the_configuration_change() -> None:
    assert with_thresholds(CONFIG, "answer", [62.5]) == CONFIG.replace("[70]", "[62.5]")
    for block in ("\n      - 70\n      - 60", "\n    - 70"):
        changed = with_thresholds(CONFIG.replace(" [70]  # planned", block), "answer", [10.0])
        assert changed == CONFIG.replace(" [70]  # planned", " [10]")
    for name in ("auto", "nothing"):
        with pytest.raises(UserError, match=f"routes.{name} is no cascade"):
            with_thresholds(CONFIG, name, [1.0])


def test_requests_are_counted_for_the_route_alone() -> None:
    text = (
        'fairlead_cascade_accepted_total{model="small",route="answer"} 12.0\n'
        'fairlead_cascade_accepted_total{route="answer",model="large"} 3.0\n'
        'fairlead_cascade_accepted_total{route="other",model="large"} 100.0\n'
    )
    assert accepted(text, "answer") == 15
    assert accepted("", "answer") == 0


def test_samples_of_a_window_are_those_named_after_its_start(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / "observed.jsonl")
    file.append(rows(5, start=100))
    file.append(rows(5, start=200))
    everything, window = sampled(file.path, since_s=150.0)
    assert (len(everything), len(window)) == (20, 10)


def test_advice_names_each_deployment_and_its_replicas(planned: Plan) -> None:
    deployments = yaml.safe_load(advice(planned))["deployments"]
    gpus = sum(each["replicas"] * each["gpus_per_replica"] for each in deployments)
    assert gpus == sum(stage.gpus for stage in planned.stages)
    assert all(each["name"].startswith(("small-7b-tp", "medium-70b-tp")) for each in deployments)
