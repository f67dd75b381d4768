"""Constants are learned from a sample of answers, which reach the client whole."""

from __future__ import annotations

import time

import msgspec

from fairlead.core.stalls import STALL_S
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions
from tests.stack.conftest import Stack, Start, engine

SPEED = EngineParameters(
    prefill_ms_per_token=0.5, decode_ms_per_step=10.0, decode_ms_per_sequence=0.0, step_overhead_ms=0.1
)
OUTPUT_TOKENS = 64
TIME_SCALE = 5.0  # of the simulated engine: what is learned is that much smaller, and still long beside pauses


async def ask(pool: Stack, number: int) -> tuple[float, int]:
    """How many ms the answer took its client, from before it asked until after the end; the prompt's tokens."""
    text = f"Question {number}: " + "what is the meaning of all these plain words? " * 200
    usage = {"include_usage": True}
    began_s = time.monotonic()
    answer = await pool.chat(text, model="small", stream=True, max_tokens=OUTPUT_TOKENS, stream_options=usage)
    took_ms = 1e3 * (time.monotonic() - began_s)
    *_, last, done = [line for line in answer.body.splitlines() if line.startswith(b"data: ")]
    assert done == b"data: [DONE]"
    counted = msgspec.json.decode(last.removeprefix(b"data: "))["usage"]
    assert counted["completion_tokens"] == OUTPUT_TOKENS
    return took_ms, counted["prompt_tokens"]


async def test_prefill_and_decode_times_are_learned_from_streams(stack: Start) -> None:
    """No less than the engine's own, and no more than what the slowest answer took its client: a busy machine makes
    both the answers and what is learned from them slower."""
    models = {"small": {"prefill_ms_per_token": 1.0, "decode_ms_per_token": 100.0}}
    plain = EngineOptions("small", parameters=SPEED, time_scale=TIME_SCALE)
    pool = await stack(
        plain, observe={"answers_per_second": 10_000, "messages_per_second": 10_000, "interval_ms": 1000}
    )
    pool.write(pool=pool.document["pool"] | {"models": models})
    asked: list[tuple[float, int]] = []

    async def learned() -> bool:
        asked.append(await ask(pool, len(asked)))
        prefill = await pool.metric("fairlead_learned_prefill_seconds_per_token", model="small")
        decode = await pool.metric("fairlead_learned_decode_seconds_per_token", model="small")
        return prefill > 0 < decode

    await pool.until(learned, "what was observed is in force")
    prefill_ms = 1e3 * await pool.metric("fairlead_learned_prefill_seconds_per_token", model="small")
    decode_ms = 1e3 * await pool.metric("fairlead_learned_decode_seconds_per_token", model="small")
    slowest_ms, least_tokens = max(took_ms for took_ms, _ in asked), min(tokens for _, tokens in asked)
    assert 0.5 / TIME_SCALE * 0.8 < prefill_ms < slowest_ms / least_tokens
    assert 10 / TIME_SCALE * 0.8 < decode_ms < slowest_ms / OUTPUT_TOKENS
    # Of an answer during which the sidecar had no CPU for a second, nothing is learned.
    observed = await pool.metric("fairlead_time_to_first_token_seconds_count", model="small")
    stalled = await pool.metric("fairlead_observed_answers_total", result="stalled")
    assert observed + stalled == len(asked)
    assert observed >= sum(took_ms < 1e3 * STALL_S for took_ms, _ in asked)
    ratio = await pool.metric("fairlead_learned_tokens_ratio", model="small", kind="prose")
    assert 0.5 < ratio < 2


async def test_without_a_budget_no_answer_is_observed(stack: Start) -> None:
    pool = await stack(engine("small"), observe={"answers_per_second": 0})
    await ask(pool, 0)
    assert await pool.metric("fairlead_time_to_first_token_seconds_count") == 0
