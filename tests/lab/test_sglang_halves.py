"""SGLang's split of prefill and decoding: two real servers, with Fairlead and a real Envoy in front. KV goes over TCP.

The last test kills the one that computes prompts.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import pytest_asyncio

from fairlead.engines.introduction import discover
from fairlead.tools.demo.front import Front
from fairlead.tools.demo.learning import Learnt
from lab import words
from lab.engines import LabEngines
from lab.halves import Halves
from lab.pool import START_MS_PER_TOKEN, body_of
from tests.waiting import until

MODEL = "wren"
WITHIN_S = 300.0
CHAT = "/v1/chat/completions"

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(840), pytest.mark.slow]


@dataclass(frozen=True)
class Lab:
    engines: LabEngines
    client: httpx.AsyncClient
    admin: httpx.AsyncClient

    @property
    def prefill(self) -> str:
        return self.engines.running[0].address

    @property
    def decode(self) -> str:
        return self.engines.running[1].address

    async def ask(self, question: words.Question, **more: Any) -> httpx.Response:
        return await self.client.post(CHAT, json=body_of(question, MODEL) | more)

    async def metric(self, name: str, labels: str = "") -> float:
        page = (await self.admin.get("/metrics")).text
        found = re.findall(rf"^{name}\{{[^}}]*{re.escape(labels)}[^}}]*\}} (\S+)", page, re.MULTILINE)
        return sum(map(float, found))

    async def is_at_rest(self) -> bool:
        """Neither the sidecar nor a server that is still there has anything left of any request."""
        if await self.metric("fairlead_inflight_requests"):
            return False
        async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
            for engine in self.engines.running:
                try:
                    page = (await client.get(f"http://{engine.address}/metrics")).text
                except httpx.ConnectError:
                    continue
                counts = re.findall(r"^sglang:num_(?:running|\w*queue)_reqs\{.*\} (\S+)", page, re.MULTILINE)
                if not counts or any(map(float, counts)):
                    return False
        return True


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def lab() -> AsyncIterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        folder, halves = Path(name), await asyncio.to_thread(Halves)
        async with LabEngines((f"sglang:{MODEL}", f"sglang:{MODEL}"), folder, halves, quiet=True) as engines:
            one: dict[str, Any] = {"model": MODEL, "engine": "sglang"}
            meets = {"connector": "sglang", "bootstrap": halves.bootstrap}
            prefill, decode = [engine.address for engine in engines.running]
            endpoints = [
                one | {"address": prefill, "role": "prefill", "kv_transfer": meets},
                one | {"address": decode, "role": "decode", "kv_transfer": {"connector": "sglang"}},
            ]
            # A sidecar that gets no CPU for a second must not be passed by.
            sections = {"pool": {"endpoints": endpoints}, "gateway": {"processor_timeout_ms": 60_000}}
            served = await discover([prefill, decode])
            learnt = Learnt(None, {MODEL: START_MS_PER_TOKEN}, {})
            async with (
                Front(served, learnt, "fairlead", folder, None, sections) as front,
                httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=WITHIN_S) as client,
                httpx.AsyncClient(base_url=front.admin_url, trust_env=False, timeout=WITHIN_S) as admin,
            ):
                yield Lab(engines, client, admin)


async def test_each_prompt_is_computed_at_one_server_and_answered_at_the_other(lab: Lab) -> None:
    """The value is the first token, which the one computes; that the answer ends there the other finds, by its KV."""
    async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as direct:
        plain = body_of(words.question(Random(1), "en", 256), MODEL)
        assert (await direct.post(f"http://{lab.decode}{CHAT}", json=plain)).status_code == 400
    rng = Random(2)
    for number in range(4):
        question = words.question(rng, "en", 256)
        answer = (await lab.ask(question)).raise_for_status()
        assert answer.headers["x-fairlead-endpoint"] == lab.decode
        choice = answer.json()["choices"][0]
        assert (question.is_right(choice["message"]["content"]), choice["finish_reason"]) == (True, "stop")

        async def is_done(number: int = number) -> bool:
            return await lab.metric("fairlead_remote_prefills_total", 'outcome="done"') == number + 1

        await until(is_done, "the prefill has ended", WITHIN_S)
    (decision,) = (await lab.admin.get("/debug/decisions", params={"limit": 1})).json()["decisions"]
    split = decision["prefill"]["split"]
    assert (decision["prefill"]["taken"], split["prefiller"], split["decoder"]) == ("split", lab.prefill, lab.decode)
    await until(lab.is_at_rest, "nothing is left", WITHIN_S)


async def test_what_the_server_computed_before_is_cached_there(lab: Lab) -> None:
    question = words.question(Random(3), "en", 512)
    first, second = [(await lab.ask(question)).json()["usage"] for _ in range(2)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (first, second)]
    assert cached[0] < 64 < first["prompt_tokens"] // 2 < cached[1]


async def test_under_load_clients_that_leave_leave_nothing_behind(lab: Lab) -> None:
    rng = Random(4)
    questions = [words.question(rng, "en", 512) for _ in range(12)]
    asked = [
        asyncio.create_task(lab.ask(question, stream=number % 2 == 0, max_tokens=1000, ignore_eos=True))
        for number, question in enumerate(questions)
    ]

    async def all_are_held() -> bool:
        return await lab.metric("fairlead_inflight_requests", lab.decode) == len(asked)

    await until(all_are_held, "all are under way", WITHIN_S)
    for each in asked[:6]:
        each.cancel()
    answers = await asyncio.gather(*asked[6:])
    assert {answer.status_code for answer in answers} == {200}
    assert not [answer.text for answer in answers if '"error"' in answer.text]
    await until(lab.is_at_rest, "nothing is left", WITHIN_S)


async def test_a_request_whose_server_of_prompts_dies_fails_soon_and_clearly(lab: Lab) -> None:
    """The other waits for it, by its own rules for minutes; nobody else can compute a prompt, so the next is a 503."""
    dies = lab.engines.running[0].child
    os.kill(dies.pid, signal.SIGSTOP)  # so that it dies while it has a prompt to compute
    rng = Random(5)
    whole, stream = [
        asyncio.create_task(lab.ask(words.question(rng, "en", 256), stream=stream)) for stream in (False, True)
    ]

    async def both_are_there() -> bool:
        return await lab.metric("fairlead_inflight_requests", lab.prefill) == 2

    await until(both_are_there, "they wait for their prompts", WITHIN_S)
    dies.kill()
    answer, events = await asyncio.wait_for(asyncio.gather(whole, stream), 60.0)
    assert (answer.status_code, "Decode transfer failed" in answer.json()["message"]) == (500, True)
    assert (events.status_code, '"code": 500' in events.text) == (200, True)
    await until(lab.is_at_rest, "nothing is left", WITHIN_S)

    async def is_told() -> bool:
        return (await lab.ask(words.question(rng, "en", 256))).status_code == 503

    await until(is_told, "the server of prompts is ejected", WITHIN_S)
    seen = {each["address"]: each for each in (await lab.admin.get("/debug/endpoints")).json()["endpoints"]}
    assert (seen[lab.prefill]["healthy"], seen[lab.decode]["healthy"]) == (False, True)
