"""A real SGLang and a real vLLM behind one route of one model. The last test kills the SGLang.

Which of two engines is quicker on a busy machine is no fixed fact, so none of it is learned here: both cost the same,
apart from what they have to do and what they have cached.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import pytest_asyncio

from fairlead.client import Answer, Retry, ask_async
from fairlead.tools.demo.learning import Learnt
from fairlead.tools.demo.traffic import ROUTE
from lab import words
from lab.engines import LabEngine, LabEngines
from lab.pool import START_MS_PER_TOKEN, body_of, forget_prompts, running_front
from lab.servers import BLOCK_TOKENS, MAX_MODEL_LEN, PAGE_TOKENS
from tests.lab.sglang import MODEL, WITHIN_S
from tests.lab.under_load import ASKERS, answers_around_a_kill
from tests.waiting import until

KINDS = ("sglang", "vllm")
CACHED_IN = {"sglang": PAGE_TOKENS, "vllm": BLOCK_TOKENS}  # tokens of a block
CHAT = "/v1/chat/completions"
# A busy machine may keep a probe waiting for a while: that is no engine that is gone.
NOTHING_LEARNED = {"answers_per_second": 0, "timeout_ms": 10_000}
EQUALLY_FAR = {"name": "fairlead", "rtt_weight": 0}

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(1500), pytest.mark.slow]


@dataclass(frozen=True)
class Pool:
    servers: LabEngines
    client: httpx.AsyncClient
    admin: httpx.AsyncClient

    def engine(self, kind: str) -> LabEngine:
        return next(engine for engine in self.servers.running if engine.kind == kind)

    def kind_at(self, response: httpx.Response) -> str:
        """Of the engine that gave this answer."""
        address = response.raise_for_status().headers["x-fairlead-endpoint"]
        return next(engine.kind for engine in self.servers.running if engine.address == address)

    async def ask(
        self, question: words.Question, *, streams: bool = False, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return await self.client.post(CHAT, json=body_of(question, ROUTE) | {"stream": streams}, headers=headers)

    async def seen(self, kind: str) -> dict[str, Any]:
        """What the sidecar shows of the endpoint."""
        shown = (await self.admin.get("/debug/endpoints")).json()["endpoints"]
        return next(endpoint for endpoint in shown if endpoint["address"] == self.engine(kind).address)

    async def is_idle(self) -> bool:
        seen = [await self.seen(kind) for kind in KINDS]
        return all(
            each["healthy"] and not each["inflight_requests"] and not each["reported"]["running_requests"]
            for each in seen
        )

    async def metric(self, name: str, kind: str, labels: str = "") -> float:
        page = (await self.admin.get("/metrics")).text
        (value,) = re.findall(
            rf'^{name}\{{endpoint="{re.escape(self.engine(kind).address)}"{labels}\}} (\S+)', page, re.MULTILINE
        )
        return float(value)


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def pool(servers: LabEngines) -> AsyncIterator[Pool]:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        learnt = Learnt(None, {MODEL: START_MS_PER_TOKEN}, {})
        sections = {"policy": EQUALLY_FAR, "observe": NOTHING_LEARNED}
        async with (
            running_front(servers, learnt, "fairlead", Path(name), **sections) as front,
            httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=WITHIN_S) as client,
            httpx.AsyncClient(base_url=front.admin_url, trust_env=False, timeout=WITHIN_S) as admin,
        ):
            yield Pool(servers, client, admin)


async def test_requests_of_one_route_go_to_both_engines(pool: Pool) -> None:
    await until(pool.is_idle, "both are idle", WITHIN_S)
    rng = Random(1)
    asked = [pool.ask(words.question(rng, "en", 512)) for _ in range(ASKERS)]
    answers = await asyncio.gather(*asked)
    assert {pool.kind_at(answer) for answer in answers} == set(KINDS)
    assert {answer.headers["x-fairlead-model"] for answer in answers} == {MODEL}


async def test_a_question_that_the_only_model_got_wrong_is_asked_again(pool: Pool) -> None:
    body = body_of(words.question(Random(2), "en", 256), ROUTE)
    answer = await ask_async(pool.client, body, lambda _: False, retry=Retry(max_attempts=3, stop_when_alike=False))
    assert [(attempt.model, attempt.status) for attempt in answer.attempts] == [(MODEL, 200)] * 3
    assert not answer.faults


@pytest.mark.parametrize("streams", [False, True], ids=["in one piece", "streamed"])
async def test_what_a_full_sglang_refuses_the_vllm_answers(pool: Pool, streams: bool) -> None:
    """Its queue is filled from outside, so the sidecar learns of it by a refusal; of a stream in its first event."""
    await until(pool.is_idle, "both are idle", WITHIN_S)
    rng = Random(f"refused {streams}")
    sglang = pool.engine("sglang").address
    async with httpx.AsyncClient(base_url=f"http://{sglang}", trust_env=False, timeout=WITHIN_S) as direct:
        await direct.post("/slow_down", json={"forward_sleep_time": 1.0})
        filling = [
            asyncio.create_task(direct.post(CHAT, json=body_of(words.question(rng, "en", 256), MODEL)))
            for _ in range(4)
        ]
        done, _ = await asyncio.wait(filling, return_when=asyncio.FIRST_COMPLETED)
        assert {each.result().status_code for each in done} == {503}
        ids = [f"refused {streams} {number}" for number in range(ASKERS)]
        asked = [
            pool.ask(words.question(rng, "en", 512), streams=streams, headers={"x-request-id": name}) for name in ids
        ]
        answers = await asyncio.gather(*asked)
        await direct.post("/slow_down", json={"forward_sleep_time": 0})
        await asyncio.gather(*filling)
    assert {answer.status_code for answer in answers} == {200}
    assert not any('"error"' in answer.text for answer in answers)
    passed_on = []
    for name, answer in zip(ids, answers, strict=True):
        events = (await pool.admin.get(f"/debug/requests/{name}")).json()["events"]
        first = events[0]["endpoints"][0]
        passed_on.append((first, answer.headers["x-fairlead-endpoint"]) == (sglang, pool.engine("vllm").address))
    assert any(passed_on)


async def test_the_second_turn_of_a_conversation_is_cached_where_the_first_went(pool: Pool) -> None:
    await until(pool.is_idle, "both are idle", WITHIN_S)
    rng = Random(4)
    questions = [words.question(rng, "en", 512) for _ in range(4)]
    firsts = await asyncio.gather(
        *[pool.ask(question, headers={"x-session-id": question.key}) for question in questions]
    )
    assert {pool.kind_at(first) for first in firsts} == set(KINDS)
    for question, first in zip(questions, firsts, strict=True):
        await until(pool.is_idle, "both are idle", WITHIN_S)
        body: dict[str, Any] = body_of(question, ROUTE)
        said = first.json()["choices"][0]["message"]["content"]
        body["messages"] += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": words.asked("en", question.pairs[0][0])},
        ]
        second = await pool.client.post(CHAT, json=body, headers={"x-session-id": question.key})
        assert pool.kind_at(second) == pool.kind_at(first)
        block = CACHED_IN[pool.kind_at(first)]
        cached_tokens = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached_tokens >= first.json()["usage"]["prompt_tokens"] // block * block


async def test_kv_events_of_both_engines_are_followed(pool: Pool) -> None:
    rng = Random(5)

    async def indexed(kind: str) -> float:
        return await pool.metric("fairlead_prefix_index_blocks", kind)

    async def both_hold_some() -> bool:
        await asyncio.gather(*[pool.ask(words.question(rng, "en", 512)) for _ in range(4)])
        return all([await indexed(kind) for kind in KINDS])

    await until(both_hold_some, "both hold prompts", WITHIN_S)
    await forget_prompts(pool.servers)

    async def both_are_empty() -> bool:
        return not any([await indexed(kind) for kind in KINDS])

    await until(both_are_empty, "the sidecar was told that both forgot them", WITHIN_S)
    for kind in KINDS:
        counts = {
            outcome: await pool.metric("fairlead_kv_events_total", kind, f',outcome="{outcome}"')
            for outcome in ("batches", "unreadable", "garbage", "lost")
        }
        assert counts.pop("batches") > 0
        assert not any(counts.values()), kind


async def test_metrics_of_both_engines_are_followed(pool: Pool) -> None:
    before = {kind: (await pool.seen(kind))["reported"] for kind in KINDS}
    for kind in KINDS:
        url = f"http://{pool.engine(kind).address}{CHAT}"  # past the sidecar
        async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as direct:
            (await direct.post(url, json=body_of(words.question(Random(6), "zh", 512), MODEL))).raise_for_status()

        async def is_reported(kind: str = kind) -> bool:
            now = (await pool.seen(kind))["reported"]
            return bool(now["prefix_queried_tokens"] >= before[kind]["prefix_queried_tokens"] + 500)

        await until(is_reported, f"the prompt is in what the sidecar knows of {kind}", WITHIN_S)
        seen = await pool.seen(kind)
        assert (seen["healthy"], seen["engine"], seen["max_model_len"]) == (True, kind, MAX_MODEL_LEN)
        assert (seen["reported"]["stale"], seen["reported"]["kv_capacity_tokens"] > 0) == (False, True)


async def test_an_sglang_that_is_killed_under_load_loses_no_question(pool: Pool) -> None:
    """It holds what it is asked, so that it dies with requests."""
    sglang = pool.engine("sglang")
    async with httpx.AsyncClient(base_url=f"http://{sglang.address}", trust_env=False) as direct:
        await direct.post("/slow_down", json={"forward_sleep_time": 60.0})

    async def ask(rng: Random) -> Answer:
        return await ask_async(pool.client, body_of(words.question(rng, "en", 512), ROUTE), lambda _: True)

    async def holds_some() -> bool:
        return bool((await pool.seen("sglang"))["inflight_requests"])

    async def is_ejected() -> bool:
        return not (await pool.seen("sglang"))["healthy"]

    answers = await answers_around_a_kill(ask, holds_some, sglang.child.kill, is_ejected)
    assert not [answer.faults for answer in answers if answer.faults]
    assert {answer.attempts[-1].status for answer in answers} == {200}
    assert {answer.attempts[-1].endpoint for answer in answers[-ASKERS:]} == {pool.engine("vllm").address}
