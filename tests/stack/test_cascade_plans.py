"""From a profile through Envoy to a plan, and to a new one when the traffic is not what was planned for."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
import yaml

from fairlead.cascade.judge import EndpointJudge
from fairlead.cascade.rows import read_rows
from fairlead.errors import UserError
from fairlead.tools.plan.profiling import Asking, profile, read_requests
from fairlead.tools.plan.replanning import Replanner
from fairlead.tools.plan.search import Aim
from fairlead.tools.plan.settings import CascadeSettings
from fairlead.tools.plan.watching import Watched, watch_windows
from tests.stack.conftest import Start, engine
from tests.stack.test_cascade import HALF, Judge, asked, judge, question, routes

__all__ = ["judge"]  # the fixture

SETTINGS = CascadeSettings.model_validate(
    {
        "gpus": {"count": 4, "memory_gib": 80},
        "rate_per_s": 1000.0,
        "models": [
            {
                "name": name, "weights_gib": 10, "kv_kib_per_token": 50, "prefill_ms_per_token": 0.01,
                "decode_ms_per_step": step_ms, "max_pp": 1, "tp_speedup": {1: 1.0},
            }
            for name, step_ms in (("small", 1.0), ("large", 4.0))
        ],
    }
)  # fmt: skip


@pytest.mark.slow
async def test_a_profile_taken_through_envoy_and_a_plan_that_follows_the_traffic(
    stack: Start, judge: Judge, tmp_path: Path
) -> None:
    sampled = {"sample": {"share": 1.0, "file": "observed.jsonl"}}
    pool = await stack(
        engine("small", capability=HALF), engine("large"), routes=routes(judge, thresholds=[0], **sampled)
    )
    requests = tmp_path / "requests.jsonl"
    requests.write_text("\n".join(question(number) for number in range(30)))
    asking = Asking(pool.url, ("small", "large"), concurrency=4, timeout_s=20.0)
    out = tmp_path / "profile.jsonl"
    grader = EndpointJudge(pool.client, judge.url, "grader")
    counts = await profile(read_requests(requests), asking, grader, out, set(), pool.client, lambda: None)
    assert (counts.done, counts.failed, counts.unjudged) == (60, 0, 0)
    rows = read_rows(out)
    assert all(row.score == 100 for row in rows if row.model == "large")

    planner = Replanner(SETTINGS, Aim(least_quality=90), rows)
    watched = Watched([pool.config_path], "answer", tmp_path / "plan.yaml", tmp_path / "allocation.yaml", 1.0)
    for number in range(25):  # enough samples to plan from
        await asked(pool, number=number)
    watching = asyncio.create_task(asyncio.to_thread(lambda: list(watch_windows(planner, watched, 8))))
    numbers = itertools.cycle(range(30))  # as hard as the profile: only the rate is another
    while not watching.done():
        await asked(pool, number=next(numbers))
    lines = await watching
    assert lines[0].startswith("moved: requests a second: 1000 ->"), lines
    assert lines[1].startswith("planned again: thresholds 100;"), lines
    assert yaml.safe_load(pool.config_path.read_text())["routes"]["answer"]["thresholds"] == [100]
    assert {each["model"] for each in yaml.safe_load(watched.advice.read_text())["deployments"]} == {"small", "large"}

    async def escalates() -> bool:
        scores = [(await asked(pool, number=number)).headers["x-fairlead-cascade-scores"] for number in range(30)]
        stages = [(await asked(pool, number=number)).headers["x-fairlead-cascade-stage"] for number in range(30)]
        return "0" in scores and "2" in stages

    await pool.until(escalates, "the new threshold sends wrong answers on")


async def test_a_route_without_samples_cannot_be_watched(stack: Start, judge: Judge, tmp_path: Path) -> None:
    pool = await stack(engine("small"), engine("large"), routes=routes(judge))
    watched = Watched([pool.config_path], "answer", tmp_path / "plan.yaml", tmp_path / "allocation.yaml", 0.5)
    planner = Replanner(SETTINGS, Aim(least_quality=90), [])
    with pytest.raises(UserError, match="not a cascade with a sample"):
        next(watch_windows(planner, watched, 1))
