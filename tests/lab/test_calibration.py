"""The load of the calibration: the same token ids for any engine."""

from __future__ import annotations

from random import Random

from fairlead.demo.traffic import client_of
from fairlead.simulate.parameters import EngineParameters
from fairlead.simulate.server import EngineOptions, running_engine
from lab.calibration.load import OUTPUT_TOKENS, converse
from lab.streamed import Took

FAST = EngineParameters(prefill_ms_per_token=0.001, decode_ms_per_step=0.1, block_size=32)


async def conversed(at_a_time: int) -> list[Took]:
    async with (
        running_engine(EngineOptions(model="m", parameters=FAST)) as engine,
        client_of(f"http://{engine.address}") as client,
    ):
        return await converse(client, "m", Random(7), sessions=6, turns=3, at_a_time=at_a_time)


async def test_every_turn_repeats_the_prompt_before_and_finds_its_blocks_cached() -> None:
    took = await conversed(at_a_time=1)
    for first, second in zip(took[::3], took[1::3], strict=True):
        assert (first.cached_tokens, second.cached_tokens) == (0, first.prompt_tokens // 32 * 32)
    assert {one.completion_tokens for one in took} == {OUTPUT_TOKENS}


async def test_sessions_are_the_same_however_many_run_side_by_side() -> None:
    one_by_one, together = await conversed(at_a_time=1), await conversed(at_a_time=3)
    assert [one.prompt_tokens for one in one_by_one] == [one.prompt_tokens for one in together]
