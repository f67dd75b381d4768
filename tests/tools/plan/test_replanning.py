"""A plan follows the traffic: detected, planned again, put in force without touching anything else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from fairlead.cascade.rows import ProfileRow
from fairlead.cascade.samples import SampleFile
from fairlead.errors import UserError
from fairlead.tools.plan.plan import Plan
from fairlead.tools.plan.replanning import (
    Replanned,
    Replanner,
    Window,
    accepted,
    advice,
    sampled,
    with_thresholds,
)
from fairlead.tools.plan.search import Aim
from fairlead.tools.plan.settings import CascadeSettings
from tests.tools.plan.world import profile, settings

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
    return after(replanner(WORLD, rows(200)), rows(200), 4.0).allocation


def after(planner: Replanner, observed: Sequence[ProfileRow], rate_per_s: float) -> Replanned:
    """The plan once this traffic is all that there is."""
    planner.seen(Window(60.0, rate_per_s, observed))
    return planner.plan()


def replanner(world: CascadeSettings, planned: Sequence[ProfileRow]) -> Replanner:
    return Replanner(world, Aim(least_quality=55), planned)


def test_a_rate_that_doubles_for_three_windows_is_planned_for() -> None:
    planner = replanner(WORLD, rows(200))
    window = rows(50)
    assert [planner.seen(Window(60.0, rate, window)) for rate in (8.0, 4.0, 8.0, 8.0)] == [[]] * 4
    assert planner.seen(Window(60.0, 8.0, rows(50, start=100))) == ["requests a second: 4 -> 8"]
    made = planner.plan()
    assert made.allocation.rate_per_s == 8.0
    assert planner.seen(Window(60.0, 8.0, window)) == [], "the new plan is for this rate"


def test_scores_that_fall_send_more_requests_on_at_the_same_quality(planned: Plan) -> None:
    planner = replanner(WORLD, rows(200))
    reported = [planner.seen(Window(60.0, 4.0, rows(60, harder=30.0, start=100 * n))) for n in range(3)][-1]
    assert any("score of small" in line for line in reported)
    assert planner.plan().thresholds.stages[1].share > planned.stages[1].share


def test_a_plan_after_a_shift_is_made_from_what_came_after_it_alone() -> None:
    planner = replanner(WORLD, rows(200))
    for n in range(5):
        assert planner.seen(Window(60.0, 4.0, rows(200, start=1000 * n))) == []
    for n in range(5, 8):
        moved = planner.seen(Window(60.0, 4.0, rows(100, harder=30.0, start=1000 * n)))
    assert moved
    made = planner.plan().thresholds
    fresh = replanner(WORLD, rows(200))
    alone = after(fresh, [*rows(100, harder=30.0, start=6000), *rows(100, harder=30.0, start=7000)], 4.0).thresholds
    assert made.thresholds == alone.thresholds
    assert made.quality == pytest.approx(alone.quality)


def test_a_claim_that_does_not_come_true_is_corrected() -> None:
    planner = replanner(WORLD, rows(200))
    for n in range(3):
        planner.seen(Window(60.0, 4.0, rows(60, harder=30.0, start=1000 * n)))
    claimed = planner.plan().thresholds
    doubts: list[str] = []
    for n in range(3, 7):  # less hard than the rule of drift notices, but another quality
        doubts += planner.seen(Window(60.0, 4.0, rows(60, harder=38.0, start=1000 * n)))
        if doubts:
            break
    assert doubts
    assert planner.plan().thresholds.quality != claimed.quality


def test_traffic_that_gets_a_little_harder_is_noticed_by_the_quality_of_the_thresholds_in_force() -> None:
    """By less than a third in any quantity: the rule of drift says nothing."""
    quiet, planner = [replanner(WORLD, rows(200)) for _ in range(2)]
    planner.follow([0.0])
    assert planner.seen(Window(60.0, 4.0, rows(200, start=1000))) == []
    moved: list[list[str]] = [[], []]
    for n in range(2, 6):
        window = Window(60.0, 4.0, rows(200, harder=12.0, start=1000 * n))
        for which, each in enumerate((quiet, planner)):
            moved[which] = moved[which] or each.seen(window)
    assert moved[0] == []
    assert moved[1][0].startswith("quality: ")


def test_a_shortfall_of_the_quality_asked_for_is_noticed_in_the_first_window_that_shows_it() -> None:
    """By less than the claim may be wrong: but what was asked for is known exactly."""
    planner = replanner(WORLD, rows(200))
    after(planner, rows(1600), 4.0)
    assert planner.seen(Window(60.0, 4.0, rows(800, start=2000))) == []
    (why,) = planner.seen(Window(60.0, 4.0, rows(800, harder=20.0, start=3000)))
    assert why.startswith("quality: 55 was asked for, ")
    assert planner.plan().thresholds.quality >= 55


def test_too_few_samples_are_waited_for() -> None:
    planner = replanner(WORLD, rows(200))
    seen = [planner.seen(Window(60.0, 4.0, rows(12, harder=40.0, start=1000 * n))) for n in range(8)]
    assert seen[:3] == [[]] * 3
    assert seen[-1]


def test_a_window_in_which_no_sidecar_answered_says_nothing_about_the_rate() -> None:
    planner = replanner(WORLD, rows(200))
    assert [planner.seen(Window(60.0, None, rows(50))) for _ in range(4)] == [[]] * 4


def test_thresholds_are_planned_for_the_replicas_that_are_there() -> None:
    document = WORLD.model_dump()
    for model, tp in zip(document["models"], (2, 4), strict=True):
        model["replicas"] = [{"count": 1, "tp": tp}]
    made = after(replanner(CascadeSettings.model_validate(document), rows(200)), rows(200), 2.0)
    assert [stage.gpus for stage in made.thresholds.stages] == [2, 4]


@pytest.mark.parametrize("threshold", [200 / 3, 10.0, 0.1 + 0.2, 1e-7, 100.0, 62.5])
def test_a_threshold_is_written_to_the_last_digit(threshold: float) -> None:
    read = yaml.safe_load(with_thresholds(CONFIG, "answer", [threshold]))
    assert read["routes"]["answer"]["thresholds"] == [threshold]


def test_only_the_thresholds_of_the_configuration_change() -> None:
    assert with_thresholds(CONFIG, "answer", [62.5]) == CONFIG.replace("[70]", "[62.5]")
    for block in ("\n      - 70\n      - 60", "\n    - 70"):
        changed = with_thresholds(CONFIG.replace(" [70]  # planned", block), "answer", [10.0])
        assert changed == CONFIG.replace(" [70]  # planned", " [10]")
    for name in ("auto", "nothing"):
        with pytest.raises(UserError, match=f"routes.{name} is not a cascade"):
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
    assert len(sampled(file.path, since_s=150.0)) == 10


def test_advice_names_each_deployment_and_its_replicas(planned: Plan) -> None:
    deployments = yaml.safe_load(advice(planned))["deployments"]
    gpus = sum(each["replicas"] * each["gpus_per_replica"] for each in deployments)
    assert gpus == sum(stage.gpus for stage in planned.stages)
    assert all(each["name"].startswith(("small-7b-tp", "medium-70b-tp")) for each in deployments)
