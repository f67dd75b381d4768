"""The load of the calibration: the same token ids for any engine, over HTTP or on the model's own clock."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from fairlead.tools.demo.traffic import client_of
from fairlead.tools.replay.calibration import Calibrated, Case, Error, run
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions, running_engine
from lab.calibration.load import OUTPUT_TOKENS, converse, sessions_of
from lab.calibration.modelled import modelled
from lab.calibration.report import Conversed, markdown
from lab.streamed import Took

FAST = EngineParameters(prefill_ms_per_token=0.001, decode_ms_per_step=0.1, block_size=32)
SESSIONS = sessions_of(Random(7), sessions=6, turns=3)


async def conversed(at_a_time: int) -> list[Took]:
    async with (
        running_engine(EngineOptions(model="m", parameters=FAST)) as engine,
        client_of(f"http://{engine.address}") as client,
    ):
        return await converse(client, "m", SESSIONS, at_a_time)


def test_every_turn_repeats_the_prompt_before() -> None:
    for session in SESSIONS:
        assert all(later[: len(turn)] == turn for turn, later in pairwise(session))


@pytest.mark.parametrize("at_a_time", [1, 3])
async def test_the_model_finds_cached_what_a_server_finds_cached(at_a_time: int) -> None:
    over_http, on_its_clock = await conversed(at_a_time), modelled(FAST, SESSIONS, at_a_time)
    assert [one[2:] for one in over_http] == [one[2:] for one in on_its_clock]
    for first, second in zip(over_http[::3], over_http[1::3], strict=True):
        assert (first.cached_tokens, second.cached_tokens) == (0, first.prompt_tokens // 32 * 32)
    assert {one.completion_tokens for one in over_http} == {OUTPUT_TOKENS}


def test_side_by_side_requests_wait_for_each_other_and_a_lone_one_for_nobody() -> None:
    parameters = EngineParameters(prefill_ms_per_token=0.1, block_size=32, request_overhead_ms=5.0)
    alone, crowded = modelled(parameters, SESSIONS, 1), modelled(parameters, SESSIONS, 6)
    for one in alone:
        computed = one.prompt_tokens - one.cached_tokens
        assert one.first_token_ms == pytest.approx(5.0 + parameters.step_overhead_ms + 0.1 * computed)
    assert sum(one.total_ms for one in crowded) > sum(one.total_ms for one in alone)


def test_the_report_tells_errors_of_what_was_not_fitted_with_their_sign() -> None:
    """A real engine that is a quarter slower than the model everywhere, but for its first tokens."""
    error = Error(0.0, 0.0)
    engine = Calibrated(
        prefill_ms_per_token=0.01,
        decode_ms_per_step=0.0,
        decode_ms_per_sequence=0.2,
        step_overhead_ms=2.0,
        request_overhead_ms=6.0,
        cases=4,
        contradictory_rows=0,
        first_token_error=error,
        token_error=error,
        total_error=error,
    )
    fitted = [run(engine.parameters(), Case(prompt, 16, batch, 0, 0, 0)) for prompt in (64, 512) for batch in (1, 2)]
    crowded, other = (run(engine.parameters(), Case(*load, 0, 0, 0)) for load in ((64, 16, 8), (128, 16, 1)))
    others = [crowded._replace(total_ms=crowded.total_ms * 1.25), other]
    simulated = modelled(engine.parameters(), SESSIONS, 2)
    real = [one._replace(total_ms=one.total_ms * 1.25) for one in simulated]
    report = markdown("m", "- facts", engine, fitted, others, 1.5, [Conversed(2, real, simulated)])
    assert "took 1.50 times as long as the shortest" in report
    assert "| fitted | 4 | +0% | +0% | +0% | +0% |" in report
    assert "| 8 at once | 1 | +0% | +0% | -20% | -20% |" in report
    (row,) = [line for line in report.splitlines() if line.startswith("| 2 | whole answer, ms |")]
    assert row.count("-20%") == 2
    assert row.endswith("| 20% |")
