"""Fairlead in front of two real vLLM servers with models that are really wrong at times. The last test kills one.

Where the lab's environment is not there yet it is built first, which takes some minutes; where it cannot be built, or a
server does not come up, these tests fail and say why.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import pytest_asyncio

from fairlead.client import Answer, Retry, ask_async
from fairlead.core.prefix_index import PrefixIndex
from fairlead.engines.kv_blocks import PreciseIndex
from fairlead.engines.kv_events import KvEventFeed, KvEventSource, follow
from fairlead.engines.metrics_text import read_metrics
from fairlead.tools.demo.traffic import ROUTE
from lab import words
from lab.engines import LabEngine, LabEngines
from lab.pool import body_of, forget_prompts, known, running_front
from lab.servers import A_CONNECTION_EACH, BLOCK_TOKENS, MAX_MODEL_LEN, TOPIC, Extra
from tests.lab.adapters import RANK, write_adapter
from tests.lab.under_load import ASKERS, answers_around_a_kill

ENGLISH, CHINESE = "heron", "stork"  # the models, by the script that most of their training was in
ADAPTERS = ("legal", "medical")  # of the second, which has one slot for them
WITHIN_S = 120.0
# Measured round trips between processes of one busy machine say nothing of the engines.
EQUALLY_FAR = {"name": "fairlead", "rtt_weight": 0}
TENANTS = {"header": "x-tenant", "vouched_by": "the test, which stands for a gateway"}
TIE_MS = 2.0  # the policy's default: costs that are this near are equal

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(840), pytest.mark.slow]


@dataclass(frozen=True)
class Lab:
    engines: LabEngines
    client: httpx.AsyncClient
    admin: httpx.AsyncClient

    def engine(self, model: str) -> LabEngine:
        return next(engine for engine in self.engines.running if engine.model == model)

    async def ask(self, question: words.Question, correct: Callable[[str], bool], attempts: int = 1) -> Answer:
        return await ask_async(self.client, body_of(question, ROUTE), correct, retry=Retry(max_attempts=attempts))

    async def seen(self, model: str) -> dict[str, Any]:
        """What the sidecar shows of the endpoint that serves `model`."""
        shown = (await self.admin.get("/debug/endpoints")).json()["endpoints"]
        return next(endpoint for endpoint in shown if endpoint["model"] == model)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def lab() -> AsyncIterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:  # short: the path of a Unix socket is
        folder = Path(name)
        adapters = [f"{name}={write_adapter(folder / name, CHINESE, seed)}" for seed, name in enumerate(ADAPTERS)]
        lora = ("--enable-lora", "--max-loras", "1", "--max-lora-rank", str(RANK), "--lora-modules", *adapters)
        extra = Extra((), {}), Extra(lora, {})
        async with (
            LabEngines((ENGLISH, CHINESE), folder, extra.__getitem__) as engines,
            running_front(engines, known(folder), "fairlead", folder, policy=EQUALLY_FAR, tenants=TENANTS) as front,
            httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=WITHIN_S) as client,
            httpx.AsyncClient(base_url=front.admin_url, trust_env=False, timeout=WITHIN_S) as admin,
        ):
            yield Lab(engines, client, admin)


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await what():  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("language", "length_tokens", "model"), [("en", 1024, ENGLISH), ("zh", 512, CHINESE)])
async def test_a_question_goes_to_the_model_that_is_good_at_its_kind(
    lab: Lab, language: str, length_tokens: int, model: str
) -> None:
    """Every decision, by the terms that it was made with. That model is the better choice unless it is slower by more
    than it is more often right, which a busy machine may make it: which of both was chosen each time is no fixed fact,
    that it was the one with the least expected time to a right answer is."""
    rng = Random(1)
    asked = [words.question(rng, language, length_tokens) for _ in range(10)]
    answers = [await lab.ask(question, question.is_right) for question in asked]
    shown = (await lab.admin.get("/debug/decisions", params={"limit": len(asked)})).json()["decisions"]
    for decision in shown:
        terms = {each["model"]: each["terms"] for each in decision["best"]}
        other = (terms.keys() - {model}).pop()
        advantage = terms[model]["success_probability"] / terms[other]["success_probability"]
        assert advantage > 1.5
        latency_ms = {name: each["total_ms"] * each["success_probability"] for name, each in terms.items()}
        tie_ms = TIE_MS * terms[model]["success_probability"]
        if latency_ms[model] < advantage * latency_ms[other] - tie_ms:
            assert decision["model"] == model
        elif latency_ms[model] > advantage * latency_ms[other] + tie_ms:
            assert decision["model"] == other
    assert any(answer.correct for answer in answers)


async def test_a_wrong_answer_is_retried_at_the_other_model(lab: Lab) -> None:
    answer = await lab.ask(words.question(Random(2), "zh", 512), lambda _: False, attempts=2)
    assert {attempt.model for attempt in answer.attempts} == {CHINESE, ENGLISH}  # which is first, speeds decide too


async def test_no_tenant_learns_what_another_has_cached(lab: Lab) -> None:
    """vLLM says how much of a prompt it had: of another tenant's, or of one that is under another's salt, nothing."""
    body = body_of(words.question(Random(4), "en", 256), ENGLISH)

    async def cached_tokens(tenant: str, **more: Any) -> int:
        response = await lab.client.post("/v1/chat/completions", json=body | more, headers={"x-tenant": tenant})
        return int(response.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert await cached_tokens("one") == 0
    assert await cached_tokens("one") >= 128
    assert await cached_tokens("two") == 0
    assert await cached_tokens("three", cache_salt=b"one".hex()) == 0


async def test_the_second_turn_of_a_session_finds_its_prompt_in_the_cache(lab: Lab) -> None:
    question = words.question(Random(3), "en", 256)
    body: dict[str, Any] = body_of(question, ENGLISH)
    turns = []
    for key in (question.key, question.pairs[0][0]):
        response = await lab.client.post("/v1/chat/completions", json=body, headers={"x-session-id": "two turns"})
        turns.append(response)
        said = response.json()["choices"][0]["message"]
        body["messages"] += [said, {"role": "user", "content": words.asked("en", key)}]
    first, second = [response.json()["usage"] for response in turns]
    cached_tokens = second["prompt_tokens_details"]["cached_tokens"]
    assert cached_tokens == first["prompt_tokens"] // BLOCK_TOKENS * BLOCK_TOKENS
    decisions = (await lab.admin.get("/debug/decisions", params={"limit": 1})).json()["decisions"]
    assert decisions[0]["cached_tokens"] == pytest.approx(cached_tokens, rel=0.2)


async def test_two_adapters_of_a_real_engine_take_turns_in_its_one_slot(lab: Lab) -> None:
    async def are_listed() -> bool:
        return set((await lab.seen(CHINESE))["adapters"]) == set(ADAPTERS)

    async def is_loaded(name: str) -> bool:
        seen = await lab.seen(CHINESE)
        return (seen["adapter_slots"], seen["adapters_loaded"]) == (1, [name])

    await until(are_listed)
    legal, medical = ADAPTERS
    answers, needed = [], []
    for name in (legal, legal, medical, legal):
        body = {"model": name, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
        response = await lab.client.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.headers["x-fairlead-endpoint"]) == (200, lab.engine(CHINESE).address)
        answer = response.json()
        assert answer["model"] == name
        answers.append(answer["choices"][0]["message"]["content"])
        (decision,) = (await lab.admin.get("/debug/decisions", params={"limit": 1})).json()["decisions"]
        needed.append(decision["best"][0]["terms"]["adapter_ms"] > 0)
        await until(partial(is_loaded, name))
    assert needed == [True, False, True, True]
    assert answers[0] == answers[1] == answers[3] != answers[2]


async def test_the_metrics_page_of_a_real_engine_is_read_in_full(lab: Lab) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        page = await client.get(f"http://{lab.engine(CHINESE).address}/metrics")
    report = read_metrics(page.content, time.monotonic())
    assert report is not None
    assert None not in (
        *(report.running_requests, report.waiting_requests, report.kv_usage, report.kv_capacity_tokens),
        *(report.prompt_tokens, report.generated_tokens, report.prefix_hit_tokens, report.process_start_s),
    )
    assert report.kv_block_tokens == BLOCK_TOKENS


async def test_the_sidecar_knows_what_a_real_engine_is_and_does(lab: Lab) -> None:
    await lab.ask(words.question(Random(4), "zh", 512), lambda _: True)

    async def is_reported() -> bool:
        seen = await lab.seen(CHINESE)
        return bool(seen["reported"]["prefix_queried_tokens"]) and seen["rtt_ms"] > 0 and seen["version"] is not None

    await until(is_reported)
    seen = await lab.seen(CHINESE)
    assert (seen["healthy"], seen["max_model_len"]) == (True, MAX_MODEL_LEN)
    assert not seen["reported"]["stale"]


async def test_the_blocks_that_a_real_engine_stores_and_clears_are_followed(lab: Lab) -> None:
    engine = lab.engine(ENGLISH)
    precise = PreciseIndex()
    source = KvEventSource(engine.address, engine.events, engine.replay, TOPIC)
    feed = KvEventFeed(source, precise, PrefixIndex(), time.monotonic)
    following = asyncio.create_task(follow([feed]))
    try:
        base_url = f"http://{engine.address}"
        async with httpx.AsyncClient(trust_env=False, base_url=base_url, limits=A_CONNECTION_EACH) as client:
            rng = Random(5)

            async def hears() -> bool:  # what a publisher says before a subscription has reached it, nobody hears
                await client.post("/v1/chat/completions", json=body_of(words.question(rng, "ja", 64), engine.model))
                return feed.counts.batches > 0

            await until(hears)
            body = body_of(words.question(rng, "ja", 256), engine.model)
            tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
            await client.post("/v1/chat/completions", json=body)

            async def is_held() -> bool:
                return precise.match(tokens, engine.address) == len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS

            await until(is_held)
            await forget_prompts(lab.engines)

            async def is_gone() -> bool:
                return precise.match(tokens, engine.address) == 0

            await until(is_gone)
    finally:
        following.cancel()
        await asyncio.wait([following])
    assert (feed.counts.unreadable, feed.counts.skipped_events, feed.counts.lost) == (0, 0, 0)


async def test_an_engine_that_is_killed_under_load_loses_no_question(lab: Lab) -> None:
    async def ask(rng: Random) -> Answer:
        return await lab.ask(words.question(rng, "en", 512), lambda _: True)

    async def holds_some() -> bool:
        return bool((await lab.seen(ENGLISH))["inflight_requests"])

    async def is_ejected() -> bool:
        return not (await lab.seen(ENGLISH))["healthy"]

    answers = await answers_around_a_kill(ask, holds_some, lab.engine(ENGLISH).child.kill, is_ejected)
    assert {answer.attempts[-1].status for answer in answers} == {200}
    assert {answer.attempts[-1].model for answer in answers[-ASKERS:]} == {CHINESE}
