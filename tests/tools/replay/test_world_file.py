"""World files: what they describe, and what is said of those that describe nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.core.lengths import BUCKETS
from fairlead.errors import UserError
from fairlead.tools.replay.network import drawn, read_series
from fairlead.tools.replay.world_file import read_world, shipped_engines


def world_file(folder: Path, text: str) -> Path:
    path = folder / "world.yaml"
    path.write_text(text)
    return path


def test_groups_of_engines_are_spelled_out_with_addresses_of_their_own(tmp_path: Path) -> None:
    world = read_world(
        world_file(
            tmp_path,
            """
            pool:
              - {count: 2, engine: llama2-70b-h100-80gb-tp8}
              - {count: 3, engine: small, region: far, model: n}
            engines:
              small: {calibrated: llama2-70b-a100-80gb-tp4, kv_tokens: 1000, token_budget: 4096}
            regions: {far: 90}
            routes: {auto: [m, n]}
            observe: {scrape_s: 30}
            """,
        )
    )
    assert len({spec.address for spec in world.endpoints}) == 5
    first, last = world.endpoints[0], world.endpoints[-1]
    assert first.engine == shipped_engines()["llama2-70b-h100-80gb-tp8"]
    assert (last.model, last.kv_tokens, last.engine.token_budget) == ("n", 1000, 4096)
    assert last.engine.prefill_ms_per_token == shipped_engines()["llama2-70b-a100-80gb-tp4"].prefill_ms_per_token
    assert (world.rtt("far").at(0.0), world.asked, world.observation.scrape_s) == (90.0, "auto", 30.0)


def test_a_calibration_of_before_requests_had_a_cost_of_their_own_is_still_read(tmp_path: Path) -> None:
    error = {"median": 0.1, "worst_tenth": 0.2}
    engine = {
        "prefill_ms_per_token": 0.1,
        "decode_ms_per_step": 9.0,
        "decode_ms_per_sequence": 0.2,
        "step_overhead_ms": 3.0,
        "cases": 9,
        "contradictory_rows": 0,
        **dict.fromkeys(("first_token_error", "token_error", "total_error"), error),
    }
    (tmp_path / "engines.json").write_text(json.dumps({"source": "mine", "engines": {"old": engine}}))
    text = """
        calibration: engines.json
        pool: [{engine: old}, {engine: {calibrated: old, request_overhead_ms: 4}}]
        """
    old, mine = read_world(world_file(tmp_path, text)).endpoints
    assert (old.engine.step_overhead_ms, old.engine.request_overhead_ms) == (3.0, 0.0)
    assert (mine.engine.step_overhead_ms, mine.engine.request_overhead_ms) == (3.0, 4.0)


def test_accuracy_is_read_from_capability_files(tmp_path: Path) -> None:
    table = {"other": [0.5] * len(BUCKETS)}
    (tmp_path / "kv.json").write_text(json.dumps({"task": "t", "buckets": BUCKETS, "models": {"m": table}}))
    world = read_world(world_file(tmp_path, "pool: [{model: m}]\nretries: {right: kv.json, most_attempts: 4}"))
    assert world.retries.right["m"].success_probability("en", 0) == 0.5
    assert world.retries.believed is world.retries.right
    assert world.router_endpoints()[0].spec.capability.success_probability("en", 0) == 0.5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pool: []", "length >= 1"),
        ("pools: [{}]", "pool"),
        ("pool: [{}]\nnonsense: 1", "nonsense"),
        ("pool: [{engine: abacus}]", r'pool\[0\].engine: no engine is called "abacus"; known names: bloom'),
        ("pool: [{engine: {calibrated: abacus}}]", 'no engine "abacus" was calibrated'),
        ("pool: [{engine: {token_budget: 8}}]", "token_budget is below max_num_seqs"),
        ("pool: [{region: mars}]", r'pool\[0\].region: "mars" is not under regions'),
        ("pool: [{model: m}]\nasked: n", 'asked: "n" is neither a model nor a route; known names: m'),
        ("pool: [{}]\nregions: {mars: mars.csv}", "mars.csv: cannot be read"),
        ("pool: [{}]\nobserve: {scrape_s: 0}", "scrape_s"),
        ("pool: [{}]\nretries: {right: none.json}", "retries.right: .*none.json cannot be read"),
        ("pool: [{}]\ncalibration: none.json", "calibration: .*none.json cannot be read"),
        ("pool: [", "not YAML"),
    ],
)
def test_a_mistake_is_named_by_its_key(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        read_world(world_file(tmp_path, text))


def test_measured_round_trips_hold_from_their_time_on_and_begin_anew_after_the_last(tmp_path: Path) -> None:
    path = tmp_path / "rtt.csv"
    path.write_text("t_s,rtt_ms\n100,10\n110,20\n120,30\n")
    series = read_series(path)
    assert [series.at(1e3 * t) for t in (0, 9.9, 10, 25, 30, 45)] == [10, 10, 20, 30, 10, 20]
    path.write_text("t_s,rtt_ms\n5,10\n5,20\n")
    with pytest.raises(UserError, match=f"^{path}:3: t_s 5 is not after the row above"):
        read_series(path)


def test_drawn_round_trips_have_the_mean_and_the_deviation_asked_for() -> None:
    from random import Random
    from statistics import fmean, stdev

    all_drawn = [drawn(280.0, 40.0, Random(seed)) for seed in range(30)]
    values = [series.at(1e4 * n) for series in all_drawn for n in range(360)]
    assert fmean(values) == pytest.approx(280.0, rel=0.03)
    assert stdev(values) == pytest.approx(40.0, rel=0.15)
