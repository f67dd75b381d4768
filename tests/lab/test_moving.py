"""KV moves between two real vLLM servers over TCP, with Fairlead and a real Envoy in front: sessions, and prompts that
one of the servers computes for the other.

The servers are those of the lab, first with vLLM's Mooncake connector and then with its NIXL connector, last with a
role for each. Prompts are longer than what the tiny models learned: what they answer means nothing. That it is the
same, with the same probabilities, is what counts.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import httpx
import pytest
import pytest_asyncio

from fairlead.engines.introduction import discover
from fairlead.engines.kv_transfer import Exported, Party, Prompt, TransferError, complete, taken
from fairlead.engines.mooncake import Mooncake
from fairlead.tools.demo.front import Front
from fairlead.tools.demo.learning import Learnt
from lab import words
from lab.engines import LabEngines
from lab.moving import ABORT_S, Moving, NixlHalves, OverMooncake, OverNixl
from lab.pool import forget_prompts, known, running_front
from lab.servers import BLOCK_TOKENS
from tests.waiting import until

MODEL = "heron"
WITHIN_S = 120.0
BUSY = 3  # answers under way at the server that decodes
TRIES = 5
GIVE_UP_S = 400.0
TRY_AGAIN_S = 40.0  # a copy may take 15 s, and an engine is left alone for 5 s after one that failed
ROUNDING = 0.25  # two steps of a bfloat16 logit between 16 and 32

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(840), pytest.mark.slow]


@dataclass(frozen=True)
class Lab:
    engines: LabEngines
    moving: Moving
    folder: Path
    client: httpx.AsyncClient
    admin: httpx.AsyncClient

    def party(self, number: int) -> Party:
        return Party(self.engines.running[number].address, self.moving.kv_transfer[number].get("bootstrap", ""))

    async def turn(self, session: str, number: int) -> httpx.Response:
        response = await self.client.post(
            "/v1/chat/completions", json=conversation(session, number), headers={"x-session-id": session}
        )
        return response.raise_for_status()

    async def order(self, name: str, **order: Any) -> dict[str, Any]:
        response = await self.admin.post(f"/migrate/{name}", json=order)
        assert response.status_code == 200, response.text
        return dict(response.json())


def conversation(session: str, number: int) -> dict[str, Any]:
    """Some 5,000 tokens, and a question more with each turn."""
    rng = Random(session)
    prompts = [words.question(rng, "en", 1024).prompt for _ in range(5)]
    messages: list[dict[str, str]] = [{"role": "user", "content": "\n".join(prompts)}]
    for _ in range(number):
        asked = words.question(rng, "en", 128)
        messages += [{"role": "assistant", "content": asked.pairs[0][1]}, {"role": "user", "content": asked.prompt}]
    sampling = {"temperature": 0, "max_tokens": 4, "ignore_eos": True, "logprobs": True, "top_logprobs": 5}
    return {"model": MODEL, "messages": messages} | sampling


async def compute_long_prompts(engines: LabEngines) -> None:
    """The first one takes ten times as long as those after it: what it runs is compiled then."""
    async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
        for engine in engines.running:
            asked = client.post(f"http://{engine.address}/v1/chat/completions", json=conversation("first", 0))
            (await asked).raise_for_status()


def listed(engines: LabEngines, moving: Moving) -> list[dict[str, Any]]:
    """The engines as a configuration lists them."""
    return [
        {"address": engine.address, "model": MODEL, "kv_transfer": transfer}
        for engine, transfer in zip(engines.running, moving.kv_transfer, strict=True)
    ]


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[OverMooncake, OverNixl, NixlHalves])
async def lab(request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:  # short: the path of a Unix socket is
        folder, moving = Path(name), await asyncio.to_thread(request.param, 2)
        async with LabEngines((MODEL, MODEL), folder, moving) as engines:
            await compute_long_prompts(engines)
            (folder / "admin.token").write_text("t" * 48, encoding="utf-8")
            listen, token = {"admin_token_file": "admin.token"}, {"authorization": f"Bearer {'t' * 48}"}
            pool = {"endpoints": listed(engines, moving)}
            async with (
                running_front(engines, known(folder), "ear", folder, pool=pool, listen=listen) as front,
                httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=WITHIN_S) as client,
                httpx.AsyncClient(base_url=front.admin_url, trust_env=False, timeout=WITHIN_S, headers=token) as admin,
            ):
                yield Lab(engines, moving, folder, client, admin)


@pytest.mark.parametrize("lab", [OverMooncake], indirect=True, scope="module")
async def test_a_moved_session_finds_its_context_on_the_target_and_gets_the_same_answer(lab: Lab) -> None:
    home = (await lab.turn("s", 0)).headers["x-fairlead-endpoint"]
    target = next(engine.address for engine in lab.engines.running if engine.address != home)
    await lab.order("move", session="s", to=target)
    during = await lab.turn("s", 1)
    assert during.headers["x-fairlead-endpoint"] == home
    async with asyncio.timeout(WITHIN_S):
        while (await lab.order("session", session="s"))["endpoint"] != target:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    after = await lab.turn("s", 2)
    assert after.headers["x-fairlead-endpoint"] == target
    usage = after.json()["usage"]
    assert usage["prompt_tokens"] > 4000
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"]
    async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
        unmoved = await client.post(f"http://{home}/v1/chat/completions", json=conversation("s", 2))
    assert_same(after.json()["choices"][0], unmoved.json()["choices"][0])
    page = (await lab.admin.get("/metrics")).text
    assert 'fairlead_session_migrations_total{outcome="done",way="copy"} 1.0' in page


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["message"]["content"] == other["message"]["content"]
    for these, those in zip(one["logprobs"]["content"], other["logprobs"]["content"], strict=True):
        assert these["token"] == those["token"]
        assert these["logprob"] == pytest.approx(those["logprob"], abs=ROUNDING)


@pytest.mark.parametrize("lab", [OverMooncake], indirect=True, scope="module")
async def test_an_import_that_finds_nothing_is_computed_and_its_counter_says_so(lab: Lab) -> None:
    source, target = lab.party(0), lab.party(1)
    engine_id = await Mooncake().discover(source, 60.0)
    before = (await taken(target, WITHIN_S)).tokens
    ids = [10 + n % 900 for n in range(64 * BLOCK_TOKENS)]
    params = Mooncake().to_import("never exported", source, engine_id, Exported(None, None))
    with pytest.raises(TransferError, match="import: timeout"):
        await complete("import", target, Prompt(MODEL, ids, BLOCK_TOKENS), params, 1.0)
    imported = await complete("import", target, Prompt(MODEL, ids, BLOCK_TOKENS), params, ABORT_S + WITHIN_S)
    assert imported.cached_tokens == 0
    assert (await taken(target, WITHIN_S)).tokens == before


@dataclass(frozen=True)
class Halves:
    """Another front: the server at `prefill` only computes prompts for the one at `decode`."""

    prefill: str
    decode: str
    client: httpx.AsyncClient
    admin: httpx.AsyncClient

    async def inflight(self) -> dict[str, float]:
        page = (await self.admin.get("/metrics")).text
        found = re.findall(r'^fairlead_inflight_requests\{endpoint="([^"]+)"[^}]*\} (\S+)', page, re.MULTILINE)
        return {endpoint: float(count) for endpoint, count in found}

    async def is_up(self, endpoint: str) -> bool:
        page = (await self.admin.get("/metrics")).text
        return re.search(rf'^fairlead_endpoint_up\{{endpoint="{endpoint}"[^}}]*\}} 1', page, re.MULTILINE) is not None

    async def split(self, outcome: str) -> int:
        """Prompts that the other server was asked to compute."""
        counts = re.findall(rf'^\w+\{{outcome="{outcome}",[^}}]*\}} (\S+)', await self.prefills(), re.MULTILINE)
        return round(sum(map(float, counts)))

    async def prefills(self) -> str:
        page = (await self.admin.get("/metrics")).text
        return "\n".join(re.findall(r"^fairlead_remote_prefills_total.*", page, re.MULTILINE))

    async def ask(self, session: str) -> httpx.Response:
        return (await self.client.post("/v1/chat/completions", json=conversation(session, 0))).raise_for_status()


@asynccontextmanager
async def halves(lab: Lab, prefill: str) -> AsyncIterator[Halves]:
    """With answers under way at the decode server all the time, which a long prompt would interrupt."""
    (decode,) = [engine.address for engine in lab.engines.running if engine.address != prefill]
    endpoints = [
        endpoint | {"role": "prefill" if endpoint["address"] == prefill else "decode"}
        for endpoint in listed(lab.engines, lab.moving)
    ]
    # At this speed a prompt of some tokens is not worth a transfer, and one of thousands is, beside other answers.
    pool = {"endpoints": endpoints, "models": {MODEL: {"prefill_ms_per_token": 0.2}}}
    folder = Path(tempfile.mkdtemp(dir=lab.folder))
    # Engines take all cores: a sidecar that waits for one is not away, and what is judged is where prompts go.
    sections = {"pool": pool, "observe": {"answers_per_second": 0}, "gateway": {"processor_timeout_ms": 60_000}}
    served = await discover([each["address"] for each in endpoints])
    async with (
        Front(served, Learnt(known(folder).capability, {MODEL: 0.2}, {}), "fairlead", folder, None, sections) as front,
        httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=WITHIN_S) as client,
        httpx.AsyncClient(base_url=front.admin_url, trust_env=False, timeout=WITHIN_S) as admin,
    ):
        them = Halves(prefill, decode, client, admin)

        async def identified() -> bool:
            return all(e["version"] for e in (await admin.get("/debug/endpoints")).json()["endpoints"])

        await until(identified, "the engines have told their version", WITHIN_S)
        answers = [asyncio.create_task(answer_forever(client)) for _ in range(BUSY)]

        async def is_busy() -> bool:
            return (await them.inflight()).get(decode, 0) >= BUSY

        try:
            await until(is_busy, "answers are under way", WITHIN_S)
            yield them
        finally:
            for each in answers:
                each.cancel()
            await asyncio.gather(*answers, return_exceptions=True)

        async def is_at_rest() -> bool:
            return not any((await them.inflight()).values())

        await until(is_at_rest, "nothing is left of any request", WITHIN_S)


async def answer_forever(client: httpx.AsyncClient) -> None:
    """One long streamed answer after another."""
    asked = [{"role": "user", "content": "Count."}]
    body = {"model": MODEL, "messages": asked, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    while True:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            async for _ in answer.aiter_bytes():
                pass


async def sources(address: str) -> dict[str, int]:
    """Prompt tokens by where the engine had them from, since its start."""
    async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
        page = (await client.get(f"http://{address}/metrics")).text
    found = re.findall(r'^vllm:prompt_tokens_by_source_total\{.*source="(\w+)".*\} ([0-9.e+]+)', page, re.MULTILINE)
    return {source: round(float(count)) for source, count in found}


async def test_a_prompt_is_computed_at_one_server_only_and_its_answer_is_the_same(lab: Lab) -> None:
    prefill = lab.engines.running[0].address
    await forget_prompts(lab.engines)
    give_up_s = monotonic() + GIVE_UP_S
    async with halves(lab, prefill) as them:
        before = await sources(prefill), await sources(them.decode)

        async def counted() -> bool:
            return (await sources(them.decode))["external_kv_transfer"] > before[1]["external_kv_transfer"]

        # A machine that is too busy makes a prefill late, or what NIXL has to say first: then KV is given up, and a
        # server that seemed to be down gets no prompts until it is seen again.
        for number in count():
            await until(partial(them.is_up, prefill), "the server is up", WITHIN_S)
            done = await them.split("done")
            before = await sources(prefill), await sources(them.decode)
            answer = await them.ask(f"p{number}")
            if await them.split("done") > done:
                with suppress(AssertionError):
                    await until(counted, "the transfer is counted", TRY_AGAIN_S)
                    break
            assert monotonic() < give_up_s, await them.prefills()
        after = await sources(prefill), await sources(them.decode)
    assert answer.headers["x-fairlead-endpoint"] == them.decode
    tokens = answer.json()["usage"]["prompt_tokens"]
    assert tokens > 4000
    computed = [now["local_compute"] - then["local_compute"] for now, then in zip(after, before, strict=True)]
    assert computed[0] >= tokens
    assert computed[1] <= 10 * BLOCK_TOKENS  # its last block, and the short prompts of the others
    assert after[1]["external_kv_transfer"] - before[1]["external_kv_transfer"] >= tokens - BLOCK_TOKENS
    await forget_prompts(lab.engines)
    async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
        alone = await client.post(f"http://{them.decode}/v1/chat/completions", json=conversation(f"p{number}", 0))
    assert_same(answer.json()["choices"][0], alone.json()["choices"][0])


async def test_split_prompts_under_load_leave_nothing_behind_though_clients_leave(lab: Lab) -> None:
    async with halves(lab, lab.engines.running[0].address) as them:
        numbers = count()
        asked: list[asyncio.Task[httpx.Response]] = []

        async def is_held() -> bool:
            if all(each.done() for each in asked):  # none was, if that server seemed to be down on a busy machine
                asked[:] = [asyncio.create_task(them.ask(f"load {next(numbers)}")) for _ in range(8)]
            return (await them.inflight()).get(them.prefill, 0) > 0

        await until(is_held, "a prompt is computed elsewhere", WITHIN_S)
        for each in asked[::2]:
            each.cancel()
        answers = await asyncio.gather(*asked[1::2])
        assert {answer.headers["x-fairlead-endpoint"] for answer in answers} == {them.decode}
    assert await is_idle(lab)


async def is_idle(lab: Lab) -> bool:
    """No engine has a request left; their gauges move only when they step."""

    async def none_left() -> bool:
        await forget_prompts(lab.engines)
        async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
            pages = [(await client.get(f"http://{e.address}/metrics")).text for e in lab.engines.running]
        counts = [
            re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)", page, re.MULTILINE) for page in pages
        ]
        return all(float(count) == 0 for page in counts for count in page)

    await until(none_left, "the engines are idle", WITHIN_S)
    return True


@pytest.mark.parametrize("lab", [OverNixl], indirect=True, scope="module")
async def test_a_copy_that_takes_too_long_as_the_servers_meet_succeeds_at_the_next_order(lab: Lab) -> None:
    """Over NIXL they tell each other of all their blocks first. On a busy machine that takes longer than a copy may."""
    home = (await lab.turn("n", 0)).headers["x-fairlead-endpoint"]
    target = next(engine.address for engine in lab.engines.running if engine.address != home)

    async def has_moved() -> bool:
        return bool((await lab.order("session", session="n"))["endpoint"] == target)

    for number in range(1, TRIES + 1):
        await lab.order("move", session="n", to=target)
        await lab.turn("n", number)
        with suppress(AssertionError):
            await until(has_moved, "the session has moved", TRY_AGAIN_S)
            break
    after = await lab.turn("n", number)
    assert after.headers["x-fairlead-endpoint"] == target
    usage = after.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"]


async def held_by_a_stopped(pid: int, prefill: str, them: Halves) -> tuple[int, asyncio.Task[httpx.Response]]:
    """A request whose prompt a server has to compute that is stopped, so that it can die with it; and how many had
    failed before it.

    A stopped server soon counts as down, so a request that is late on a busy machine goes on without it: then again.
    """
    for number in range(TRIES):
        await until(partial(them.is_up, prefill), "the server is up", WITHIN_S)
        failed = await them.split("failed")
        os.kill(pid, signal.SIGSTOP)
        asked = asyncio.create_task(them.ask(f"q{number}"))

        async def is_placed(asked: asyncio.Task[httpx.Response] = asked) -> bool:
            return asked.done() or (await them.inflight()).get(prefill, 0) > 0

        await until(is_placed, "the prompt has a server", WITHIN_S)
        if not asked.done():
            return failed, asked
        os.kill(pid, signal.SIGCONT)
    raise AssertionError(f"no prompt came to {prefill} in {TRIES} tries")


@pytest.mark.parametrize("lab", [OverMooncake, OverNixl], indirect=True, scope="module")
async def test_a_session_and_a_prompt_at_a_server_that_dies_go_on_at_the_other(lab: Lab) -> None:
    home = (await lab.turn("t", 0)).headers["x-fairlead-endpoint"]
    dies = next(engine.child for engine in lab.engines.running if engine.address == home)
    async with halves(lab, home) as them:
        await lab.order("move", session="t", to=them.decode)
        failed, asked = await held_by_a_stopped(dies.pid, home, them)
        dies.kill()
        answer = await asked
        assert await them.split("failed") == failed + 1
    assert answer.headers["x-fairlead-endpoint"] == them.decode
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] < BLOCK_TOKENS
    after = await lab.turn("t", 1)
    assert after.headers["x-fairlead-endpoint"] == them.decode
