"""Constants are learned from a sample of answers, which reach the client whole."""

from __future__ import annotations

import msgspec

from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions
from tests.stack.conftest import Stack, Start, engine

SPEED = EngineParameters(
    prefill_ms_per_token=0.5, decode_ms_per_step=10.0, decode_ms_per_sequence=0.0, step_overhead_ms=0.1
)
TIME_SCALE = 5.0  # of the simulated engine: what is learned is that much smaller, and still long beside pauses


async def ask(pool: Stack, number: int) -> None:
    text = f"Question {number}: " + "what is the meaning of all these plain words? " * 200
    usage = {"include_usage": True}
    answer = await pool.chat(text, model="small", stream=True, max_tokens=64, stream_options=usage)
    *_, last, done = [line for line in answer.body.splitlines() if line.startswith(b"data: ")]
    assert done == b"data: [DONE]"
    assert msgspec.json.decode(last.removeprefix(b"data: "))["usage"]["completion_tokens"] == 64


async def test_prefill_and_decode_times_are_learned_from_streams(stack: Start) -> None:
    models = {"small": {"prefill_ms_per_token": 1.0, "decode_ms_per_token": 100.0}}
    plain = EngineOptions("small", parameters=SPEED, time_scale=TIME_SCALE)
    pool = await stack(
        plain, observe={"answers_per_second": 10_000, "messages_per_second": 10_000, "interval_ms": 1000}
    )
    pool.write(pool=pool.document["pool"] | {"models": models})
    for number in range(12):
        await ask(pool, number)

    async def learned() -> bool:
        return await pool.metric("fairlead_learned_decode_seconds_per_token", model="small") > 0

    await pool.until(learned, "what was observed is in force")
    learned_prefill_ms = 1e3 * await pool.metric("fairlead_learned_prefill_seconds_per_token", model="small")
    learned_decode_ms = 1e3 * await pool.metric("fairlead_learned_decode_seconds_per_token", model="small")
    assert 0.5 / TIME_SCALE * 0.8 < learned_prefill_ms < 0.5 / TIME_SCALE * 3
    assert 10 / TIME_SCALE * 0.5 < learned_decode_ms < 10 / TIME_SCALE * 3
    assert await pool.metric("fairlead_time_to_first_token_seconds_count", model="small") == 12
    ratio = await pool.metric("fairlead_learned_tokens_ratio", model="small", kind="prose")
    assert 0.5 < ratio < 2


async def test_without_a_budget_no_answer_is_observed(stack: Start) -> None:
    pool = await stack(engine("small"), observe={"answers_per_second": 0})
    await ask(pool, 0)
    assert await pool.metric("fairlead_time_to_first_token_seconds_count") == 0
