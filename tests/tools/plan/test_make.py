"""The planner as a whole, on a cascade like the paper's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from fairlead.errors import UserError
from fairlead.tools.plan import workload
from fairlead.tools.plan.make import Made, make_plan
from fairlead.tools.plan.plan import faults
from fairlead.tools.plan.plan_file import read_plan, write_plan
from fairlead.tools.plan.replica_load import simulate_curve
from fairlead.tools.plan.search import Aim
from fairlead.tools.plan.settings import CascadeSettings
from tests.tools.plan.world import profile, settings

PROFILE = profile()
SHORT_ANSWERS = profile(answers=0.25)
TWO_MODELS = profile(models=2)
FEW_SHAPES = {"max_pp": 1}


@pytest.fixture(scope="module")
def by_quality() -> dict[int, Made]:
    world = settings(16, 14.0, **FEW_SHAPES)
    return {
        quality: make_plan(world, SHORT_ANSWERS, Aim(least_quality=quality), whole=True) for quality in (85, 75, 60)
    }


def test_a_lower_quality_moves_thresholds_shares_and_gpus_as_in_the_papers_table_2(by_quality: dict[int, Made]) -> None:
    plans = [made.plan for made in by_quality.values()]
    for higher, lower in pairwise(plans):
        assert lower.thresholds[0] <= higher.thresholds[0]
        assert sum(lower.thresholds) < sum(higher.thresholds)
        assert [s.share for s in lower.stages] < [s.share for s in higher.stages]
        assert lower.stages[2].share < higher.stages[2].share
        assert lower.stages[2].gpus <= higher.stages[2].gpus
        assert lower.stages[0].gpus >= higher.stages[0].gpus
        assert max(s.latency.p95_ms for s in lower.stages) < max(s.latency.p95_ms for s in higher.stages)
    assert plans[0].stages[2].gpus > 0
    assert plans[-1].stages[2].gpus == 0, "at the lowest quality two models are enough"


def test_every_plan_is_sound_and_meets_its_quality(by_quality: dict[int, Made]) -> None:
    for quality, made in by_quality.items():
        assert faults(made.plan.thresholds, made.plan.stages, 16) == []
        assert made.plan.quality >= quality
        assert made.searched.best.score == pytest.approx(made.searched.best.latency_ms), "no penalty is left in J"


def test_what_the_search_saw_is_what_the_whole_cascade_does(by_quality: dict[int, Made]) -> None:
    for made in by_quality.values():
        for seen_ms, stage in zip(made.searched.best.stage_ms, made.plan.stages, strict=True):
            assert stage.latency.p95_ms == pytest.approx(seen_ms, rel=0.2)


def test_a_plan_is_the_same_when_it_is_read_back(by_quality: dict[int, Made], tmp_path_factory: object) -> None:
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    plan = by_quality[75].plan
    write_plan(path, plan)
    again = read_plan(path)
    write_plan(path, again)
    assert read_plan(path) == again
    assert (again.thresholds, again.inputs) == (plan.thresholds, plan.inputs)
    assert [(s.gpus, s.strategy) for s in again.stages] == [(s.gpus, s.strategy) for s in plan.stages]


def test_within_a_latency_limit_quality_is_the_most_that_is_possible() -> None:
    world = settings(12, 4.0, models=2, **FEW_SHAPES)
    fast, slow = (make_plan(world, TWO_MODELS, Aim(most_latency_ms=ms)) for ms in (22_000, 30_000))
    assert fast.plan.end_to_end.p95_ms <= 22_000
    assert slow.plan.end_to_end.p95_ms <= 30_000
    assert slow.plan.quality > fast.plan.quality


def test_on_replicas_that_are_there_only_thresholds_are_planned() -> None:
    world = with_replicas(settings(12, 4.0, models=2, **FEW_SHAPES), [(4, 1)], [(2, 4)])
    made = make_plan(world, TWO_MODELS, Aim(least_quality=60), fixed_deployment=True)
    assert [stage.gpus for stage in made.plan.stages] == [4, 8]
    free = make_plan(world, TWO_MODELS, Aim(least_quality=60), whole=True)
    assert free.searched.best.latency_ms <= made.searched.best.latency_ms


def test_the_same_inputs_give_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "simulate_curve", simulate_curve)  # each plan simulates for itself
    world, sample = settings(4, 1.0, models=2, **FEW_SHAPES), profile(60, models=2, answers=0.1)
    once, again = (make_plan(world, sample, Aim(least_quality=60)).plan for _ in range(2))
    assert once == again
    assert make_plan(world, sample, Aim(least_quality=61)).plan.inputs != once.inputs


@pytest.mark.parametrize(
    ("change", "aim", "said"),
    [
        ({}, Aim(least_quality=99), "is above .*, the best that any thresholds reach"),
        ({"rate_per_s": 400.0}, Aim(least_quality=65), "do not carry 400 requests a second"),
        ({"rate_per_s": 1.0}, Aim(most_latency_ms=100.0), "no plan is faster than"),
    ],
)
def test_an_aim_out_of_reach_is_reported(change: dict[str, float], aim: Aim, said: str) -> None:
    world = settings(8, 1.0, models=2, **FEW_SHAPES).model_copy(update=change)
    with pytest.raises(UserError, match=said):
        make_plan(world, TWO_MODELS, aim)


def test_a_price_for_missing_the_quality_is_weighed_against_latency() -> None:
    world = settings(12, 4.0, models=2, **FEW_SHAPES)
    cheap, expensive = (
        make_plan(world, TWO_MODELS, Aim(least_quality=66, penalty=penalty)).plan for penalty in (1e3, 1e9)
    )
    assert cheap.quality < 66 <= expensive.quality
    assert max(s.latency.p95_ms for s in cheap.stages) < max(s.latency.p95_ms for s in expensive.stages)


def test_a_model_that_fits_no_gpus_is_named() -> None:
    with pytest.raises(UserError, match=r"large-671b-int4: 2 GPUs cannot hold the weights"):
        make_plan(settings(2, 1.0), PROFILE, Aim(least_quality=60))


def test_models_in_the_wrong_order_are_reported() -> None:
    backwards = replace(TWO_MODELS, score=TWO_MODELS.score[:, ::-1], quality=TWO_MODELS.quality[:, ::-1])
    with pytest.raises(UserError, match="needs its models in order of quality"):
        make_plan(settings(8, 1.0, models=2, **FEW_SHAPES), backwards, Aim(least_quality=60))


def test_a_fixed_deployment_without_replicas_is_reported() -> None:
    with pytest.raises(UserError, match=r"models\[0\]\.replicas"):
        make_plan(settings(8, 1.0, models=2), TWO_MODELS, Aim(least_quality=60), fixed_deployment=True)


def with_replicas(world: CascadeSettings, *replicas: list[tuple[int, int]]) -> CascadeSettings:
    document = world.model_dump()
    for model, own in zip(document["models"], replicas, strict=True):
        model["replicas"] = [{"count": count, "tp": tp} for count, tp in own]
    return CascadeSettings.model_validate(document)
