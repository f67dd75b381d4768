"""The way up a cascade: what the judge says, what larger models answer, and what the client gets when they do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from fairlead.api.answers import read_answer
from fairlead.cascade.counts import CascadeCounts, SampleOutcome
from fairlead.cascade.escalation import Escalation, Settled, body_for
from fairlead.cascade.judge import FunctionJudge
from fairlead.cascade.route import CascadeRoute, Entry
from fairlead.cascade.rows import read_rows
from fairlead.cascade.samples import SampleFile
from tests.cascade.conftest import Endpoint, Reply
from tests.waiting import until

ROUTE = CascadeRoute(name="answer", models=("small", "medium", "large"), thresholds=(70.0, 60.0))
SCORES = {"small": 30.0, "medium": 50.0, "large": 10.0}


class World:
    """A gateway that answers with the name of the model asked, and a judge that looks the score up."""

    def __init__(self, endpoint: Endpoint, session: aiohttp.ClientSession) -> None:
        self._endpoint, self._session = endpoint, session
        self.counts = CascadeCounts()
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.sample_files: dict[str, SampleFile] = {}
        self.escalation: Escalation

    async def settle(
        self,
        route: CascadeRoute = ROUTE,
        reply: Reply | None = None,
        judge: Callable[[Mapping[str, Any], str], Any] = lambda _, answer: SCORES[answer],
        headers: Mapping[bytes, bytes] = {},
        **body: Any,
    ) -> Settled:
        async def by_name(asked: dict[str, Any]) -> str | web.Response:
            self.asked.append((asked["model"], asked))
            return asked["model"] if reply is None else await reply(asked)

        self.escalation = escalation = Escalation(
            await self._endpoint(by_name), self.counts, time.perf_counter, ("x-session-id",)
        )
        escalation.session = self._session
        escalation.judges = {"answer": FunctionJudge(judge)}
        escalation.sample_files = self.sample_files
        request = {"model": "answer", "messages": [{"role": "user", "content": "?"}], **body}
        streams = bool(body.get("stream"))
        entry = Entry(route, 0, "/v1/chat/completions", msgspec.json.encode(request), streams, False)
        return await escalation.settle(entry, headers, b"request-1", first("small"), time.perf_counter())


def first(text: str) -> bytes:
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return msgspec.json.encode({"choices": [choice], "usage": usage})


def text_of(settled: Settled) -> str:
    assert settled.body is not None
    answer = read_answer(settled.body)
    assert answer is not None
    return str(answer.document["choices"][0]["message"]["content"])


@pytest.fixture
async def world(endpoint: Endpoint) -> AsyncIterator[World]:
    async with aiohttp.ClientSession() as session:
        yield World(endpoint, session)


async def test_a_good_answer_is_given_as_it_is(world: World) -> None:
    settled = await world.settle(judge=lambda _, __: 70)
    assert (settled.body, settled.stage, settled.scores) == (None, 1, (70.0,))
    assert world.asked == []
    assert world.counts.accepted == {("answer", "small"): 1}


async def test_a_bad_answer_goes_up_until_one_suffices(world: World) -> None:
    settled = await world.settle(judge=lambda _, answer: 90 if answer == "medium" else 10)
    assert (text_of(settled), settled.stage, settled.model, settled.scores) == ("medium", 2, "medium", (10.0, 90.0))
    assert [model for model, _ in world.asked] == ["medium"]


async def test_the_last_models_answer_is_not_judged_and_usage_is_of_all(world: World) -> None:
    settled = await world.settle()
    assert (text_of(settled), settled.stage, settled.scores) == ("large", 3, (30.0, 50.0))
    assert settled.body is not None
    usage = msgspec.json.decode(settled.body)["usage"]
    assert usage == {"prompt_tokens": 21, "completion_tokens": 3, "total_tokens": 24}


async def test_a_larger_model_is_asked_what_the_client_asked(world: World) -> None:
    await world.settle(temperature=0.5, stream=True, stream_options={"include_usage": True})
    _, asked = world.asked[0]
    assert (asked["temperature"], asked["stream"], asked["stream_options"]) == (0.5, False, None)


@pytest.mark.parametrize("judgement", ["prose", None, 200, ValueError("broken")])
async def test_a_judge_without_a_score_is_counted_and_the_answer_accepted(world: World, judgement: object) -> None:
    def judge(_: Mapping[str, Any], __: str) -> object:
        if isinstance(judgement, Exception):
            raise judgement
        return judgement

    settled = await world.settle(judge=judge)
    assert (settled.body, settled.scores) == (None, ())
    assert world.counts.passed == {("answer", "judge"): 1}


async def test_a_judge_that_hangs_costs_its_time_limit_and_no_more(world: World) -> None:
    async def hang(_: Mapping[str, Any], __: str) -> float:
        await asyncio.Event().wait()
        return 0.0

    settled = await world.settle(msgspec.structs.replace(ROUTE, judge_timeout_s=0.05), judge=hang)
    assert settled.body is None
    assert world.counts.passed == {("answer", "judge"): 1}
    assert world.counts.held == 0


async def test_a_model_that_is_down_is_passed_over(world: World) -> None:
    async def medium_is_down(asked: dict[str, Any]) -> str | web.Response:
        return web.Response(status=503) if asked["model"] == "medium" else str(asked["model"])

    settled = await world.settle(reply=medium_is_down)
    assert (text_of(settled), settled.stage) == ("large", 3)


async def test_when_no_larger_model_answers_the_best_so_far_is_given(world: World) -> None:
    async def large_is_broken(asked: dict[str, Any]) -> str | web.Response:
        return web.Response(text="not json") if asked["model"] == "large" else str(asked["model"])

    settled = await world.settle(reply=large_is_broken)
    assert (text_of(settled), settled.stage) == ("medium", 2), "50 is more than 30"
    assert world.counts.passed == {("answer", "stages_down"): 1}
    scores = {"small": 55, "medium": 40}
    settled = await world.settle(reply=large_is_broken, judge=lambda _, answer: scores[answer])
    assert (text_of(settled), settled.stage) == ("small", 1)
    assert settled.body is not None
    assert msgspec.json.decode(settled.body)["usage"]["total_tokens"] == 16, "what was spent is told"


async def test_at_the_deadline_the_best_so_far_is_given_and_the_model_is_asked_no_longer(world: World) -> None:
    left = asyncio.Event()

    async def slow(_: dict[str, Any]) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return ""

    settled = await world.settle(msgspec.structs.replace(ROUTE, deadline_s=2.0), reply=slow)  # asked long before
    assert (settled.body, settled.scores) == (None, (30.0,))
    assert world.counts.passed == {("answer", "deadline"): 1}
    async with asyncio.timeout(60):
        await left.wait()


async def test_a_budget_of_tokens_ends_the_way_up(world: World) -> None:
    settled = await world.settle(msgspec.structs.replace(ROUTE, most_tokens=16))
    assert (text_of(settled), settled.stage) == ("medium", 2)
    assert world.counts.passed == {("answer", "tokens"): 1}


async def test_an_answer_that_is_too_long_is_passed_over(world: World) -> None:
    async def long(asked: dict[str, Any]) -> str:
        return "x" * 5000 if asked["model"] == "medium" else "large"

    settled = await world.settle(msgspec.structs.replace(ROUTE, most_bytes=2000), reply=long)
    assert text_of(settled) == "large"


async def test_a_sampled_request_goes_through_every_model_once(world: World, tmp_path: Path) -> None:
    world.sample_files["answer"] = SampleFile(tmp_path / "observed.jsonl")
    await world.settle(msgspec.structs.replace(ROUTE, sampled_share=1.0), judge=lambda _, __: 80)
    await until(lambda: world.counts.sampled["written"], "the sample is written")
    rows = read_rows(tmp_path / "observed.jsonl")
    assert [(row.model, row.score) for row in rows] == [("small", 80), ("medium", 80), ("large", 80)]
    assert [model for model, _ in world.asked] == ["medium", "large"], "the first answer is known"


async def test_a_sample_is_named_by_when_it_is_written(world: World, tmp_path: Path) -> None:
    """A watcher reads a window's rows by their names; one whose answers took long must not be older than its window."""
    answered_s: list[float] = []

    async def slowly(_: dict[str, Any]) -> str:
        await asyncio.sleep(0.01)
        answered_s.append(time.time())
        return "large"

    world.sample_files["answer"] = SampleFile(tmp_path / "observed.jsonl")
    await world.settle(msgspec.structs.replace(ROUTE, sampled_share=1.0), reply=slowly, judge=lambda _, __: 80)
    await until(lambda: world.counts.sampled["written"], "the sample is written")
    (request,) = {row.request for row in read_rows(tmp_path / "observed.jsonl")}
    assert float(request) >= round(answered_s[-1] - 1e-6, 6)


@pytest.mark.parametrize(("broken", "outcome"), [("judge", "incomplete"), ("file", "unwritten")])
async def test_a_sample_that_comes_to_nothing_is_counted(
    world: World, tmp_path: Path, broken: str, outcome: SampleOutcome
) -> None:
    def judge(_: Mapping[str, Any], answer: str) -> object:
        return "prose" if broken == "judge" and answer == "large" else 80

    folder = tmp_path / "gone" if broken == "file" else tmp_path
    world.sample_files["answer"] = SampleFile(folder / "observed.jsonl")
    await world.settle(msgspec.structs.replace(ROUTE, sampled_share=1.0), judge=judge)
    await until(lambda: world.counts.sampled[outcome], "the sample is counted")
    assert not (folder / "observed.jsonl").exists()


async def test_samples_under_way_end_with_the_sidecar(world: World, tmp_path: Path) -> None:
    async def never(_: dict[str, Any]) -> str:
        await asyncio.Event().wait()
        return ""

    world.sample_files["answer"] = SampleFile(tmp_path / "observed.jsonl")
    await world.settle(msgspec.structs.replace(ROUTE, sampled_share=1.0), reply=never, judge=lambda _, __: 80)
    async with asyncio.timeout(60):
        await world.escalation.samples.stop()
    assert not (tmp_path / "observed.jsonl").exists()


async def test_the_way_of_a_client_that_leaves_ends(world: World) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def slow(_: dict[str, Any]) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return ""

    settling = asyncio.create_task(world.settle(reply=slow))
    async with asyncio.timeout(60):
        await asked.wait()
        settling.cancel()
        await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await settling
    assert world.counts.held == 0


def test_a_stream_is_asked_for_in_one_piece() -> None:
    body = b'{"stream_options":{"include_usage":true},"stream":true, "model":"answer"}'
    entry = Entry(ROUTE, 0, "/v1/chat/completions", body, streams=True, with_usage=True)
    assert body_for(entry, "large") == b'{"stream_options":null,"stream":false, "model":"large"}'


async def test_a_larger_model_is_asked_with_the_clients_keys_and_nothing_else_of_its_headers() -> None:
    got: list[Mapping[str, str]] = []
    tenants: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(dict(request.headers))
        tenants.extend(value for name, value in request.raw_headers if name.lower() == b"x-tenant")
        return web.Response(body=first("large"), content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server:
        url = f"http://127.0.0.1:{server.port}"
        escalation = Escalation(url, CascadeCounts(), time.perf_counter, ("x-session-id",), ("x-api-key", "x-tenant"))
        await escalation.open()
        escalation.judges = {"answer": FunctionJudge(lambda _request, _answer: 0)}
        body = msgspec.json.encode({"model": "answer", "messages": [{"role": "user", "content": "?"}]})
        headers = {b"x-api-key": b"k1", b"x-tenant": "Café".encode(), b"x-session-id": b"s", b"cookie": b"c"}
        headers[b"authorization"] = b"a"
        route = msgspec.structs.replace(ROUTE, models=ROUTE.models[:2], thresholds=ROUTE.thresholds[:1])
        entry = Entry(route, 0, "/v1/chat/completions", body, False, False)
        await escalation.settle(entry, headers, b"request-1", first("small"), time.perf_counter())
        await escalation.close()
    (asked,) = got
    sent = {name.lower(): value for name, value in asked.items()}
    assert (sent["x-api-key"], tenants, sent["authorization"]) == ("k1", ["Café".encode()], "a")
    assert sent["x-session-id"].startswith("s/")
    assert "cookie" not in sent


async def test_a_gateway_that_compresses_where_it_may_and_sets_cookies_is_asked_for_neither() -> None:
    """An answer that is compressed is read by nobody here, and a cookie that came for one client is not another's."""
    cookies: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("cookie"))
        response = web.Response(body=first("large"), content_type="application/json")
        response.enable_compression()
        response.set_cookie("whose", "the first client's")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app, host="localhost") as server:
        escalation = Escalation(f"http://localhost:{server.port}", CascadeCounts(), time.perf_counter)
        await escalation.open()
        escalation.judges = {"answer": FunctionJudge(zero)}
        body = msgspec.json.encode({"model": "answer", "messages": [{"role": "user", "content": "?"}]})
        route = msgspec.structs.replace(ROUTE, models=("small", "large"), thresholds=(70.0,))
        entry = Entry(route, 0, "/v1/chat/completions", body, False, False)
        for _ in range(2):
            settled = await escalation.settle(entry, {}, b"r", first("small"), time.perf_counter())
            assert (text_of(settled), escalation.counts.passed) == ("large", {})
        await escalation.close()
    assert cookies == [None, None]


async def test_as_many_as_are_held_may_wait_for_a_larger_model_at_one_time(endpoint: Endpoint) -> None:
    """A slow larger model keeps a connection for each; neither a further request nor its judge may wait for one."""
    many, came, all_came = 120, 0, asyncio.Event()

    async def together(_: dict[str, Any]) -> str:
        nonlocal came
        came += 1
        if came == many:
            all_came.set()
        await all_came.wait()
        return "large"

    counts = CascadeCounts()
    escalation = Escalation(await endpoint(together), counts, time.perf_counter)
    await escalation.open()
    escalation.judges = {"answer": FunctionJudge(zero)}
    body = msgspec.json.encode({"model": "answer", "messages": [{"role": "user", "content": "?"}]})
    route = msgspec.structs.replace(ROUTE, models=("small", "large"), thresholds=(70.0,), deadline_s=20.0)
    entry = Entry(route, 0, "/v1/chat/completions", body, False, False)
    try:
        settled = await asyncio.gather(
            *(escalation.settle(entry, {}, b"r", first("small"), time.perf_counter()) for _ in range(many))
        )
    finally:
        await escalation.close()
    assert ({one.stage for one in settled}, counts.passed) == ({2}, {})


async def zero(_: Mapping[str, Any], __: str) -> float:
    return 0.0
