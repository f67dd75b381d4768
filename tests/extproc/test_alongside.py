"""SGLang's servers of both halves get a request at the same time, and one that waits for the other in vain is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from aiohttp import web

from fairlead.access import PLAIN
from fairlead.core.blame import Blame
from fairlead.core.endpoint import Endpoint
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.engines.alongside import Prefill
from fairlead.extproc import prefilling
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.services import Services
from fairlead.policies import build_policy
from fairlead.processes import free_ports
from tests.core.world import make_endpoint
from tests.extproc.world import (
    Conversation,
    at_rest,
    chat,
    destination,
    later,
    request_body,
    request_headers,
    response_headers,
    response_trailers,
    services_around,
    set_headers,
)
from tests.waiting import until

BOOTSTRAP = "10.0.0.1:8998"


@dataclass
class Server:
    """Both of SGLang's: it keeps what it is asked, and answers with `status` when it `may_answer`."""

    address: str
    status: int = 200
    asked: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    left: int = 0
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def chat(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        return web.json_response({}, status=self.status)

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()


@asynccontextmanager
async def world(*more: Endpoint) -> AsyncIterator[tuple[Services, Server, Server]]:
    """The first computes prompts. Nobody but Envoy would ask the second one for an answer; `more` are other servers."""
    async with world_of(2, *more) as (services, (prefill, decode)):
        yield services, prefill, decode


@asynccontextmanager
async def world_of(count: int, *more: Endpoint) -> AsyncIterator[tuple[Services, list[Server]]]:
    """The first of the servers computes prompts, the others decode."""
    servers = [Server(f"127.0.0.1:{port}") for port in free_ports(count)]
    runners = []
    for server in servers:
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", server.chat), web.post("/abort_request", server.abort)])
        runners.append(web.AppRunner(app, handler_cancellation=True))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", int(server.address.partition(":")[2])).start()
    prefill, *decode = servers
    same: dict[str, Any] = {"engine": "sglang", "kv_connector": "sglang"}
    endpoints = [
        make_endpoint(prefill.address, "small", role="prefill", **same),
        *[make_endpoint(each.address, "small", role="decode", **same) for each in decode],
        *more,
    ]
    router = Router(Pool(endpoints, {}), build_policy("fairlead", {}), fallbacks=2, rng=Random(0))
    services = services_around(router, asyncio.get_running_loop().time)
    services.prefills.bootstraps = {prefill.address: BOOTSTRAP}
    try:
        yield services, servers
    finally:
        await services.prefills.stop()
        for server in servers:
            server.may_answer.set()
        for runner in runners:
            await runner.cleanup()


async def ask(services: Services, **more: Any) -> tuple[Conversation, pb.ProcessingResponse]:
    conversation = Conversation(services)
    conversation.say(request_headers(), request_body(chat(**more)))
    (reply,) = await later(conversation)
    return conversation, reply


async def test_both_get_it_with_the_same_number_and_the_first_need_not_have_answered() -> None:
    async with world() as (services, prefill, decode):
        conversation, reply = await ask(services, stream=True, stream_options={"include_usage": True}, max_tokens=7)
        assert destination(reply) == f"{decode.address},{decode.address},{decode.address}"
        headers = set_headers(reply)
        assert (headers["x-fairlead-prefilled"], "x-prefiller-host-port" in headers) == ("1", False)
        await until(lambda: prefill.asked)
        sent = json.loads(reply.request_body.response.body_mutation.body)
        assert (sent["bootstrap_host"], sent["bootstrap_port"]) == ("10.0.0.1", 8998)
        assert 0 <= sent["bootstrap_room"] < 2**63
        assert prefill.asked == [sent | {"stream": False, "stream_options": None}]
        prefill.may_answer.set()
        await until(lambda: services.prefills.done == 1)
        conversation.say(response_headers(200, served=decode.address), response_trailers())
        conversation.stream.close()
        assert at_rest(services)
        assert (decode.aborted, dict(services.prefills.failed)) == ([], {})


async def test_no_two_requests_share_a_number_or_the_beginning_of_an_id() -> None:
    async with world() as (services, prefill, _):
        for _ in range(5):
            await ask(services)
        await until(lambda: len(prefill.asked) == 5)
        assert len({each["bootstrap_room"] for each in prefill.asked}) == 5
        assert len({each["rid"] for each in prefill.asked}) == 5
        assert {len(each["rid"]) for each in prefill.asked} == {32}


async def test_where_the_first_fails_the_second_is_told_until_the_request_ends() -> None:
    async with world() as (services, prefill, decode):
        prefill.status = 500
        prefill.may_answer.set()
        conversation, reply = await ask(services)
        rid = json.loads(reply.request_body.response.body_mutation.body)["rid"]
        await until(lambda: len(decode.aborted) == 2)  # the first one may come before the request does
        assert set(decode.aborted) == {rid}
        assert dict(services.prefills.failed) == {"status": 1}
        conversation.say(response_headers(500, served=decode.address), response_trailers())
        conversation.stream.close()
        assert at_rest(services)
        prefiller, decoder = services.router.pool.endpoints
        assert (prefiller.health.doubtful, decoder.health.doubtful) == (True, False)
        await until(lambda: not services.prefills._alongside)


async def test_each_server_that_envoy_may_have_moved_it_on_to_is_told() -> None:
    """Envoy takes the next one where it cannot connect, and says so only with the answer."""
    async with world_of(3) as (services, (prefill, *decode)):
        prefill.status = 500
        prefill.may_answer.set()
        conversation, reply = await ask(services)
        rid = json.loads(reply.request_body.response.body_mutation.body)["rid"]
        await until(lambda: all(each.aborted for each in decode))
        assert {each for server in decode for each in server.aborted} == {rid}
        conversation.say(response_headers(500, served=decode[1].address), response_trailers())
        conversation.stream.close()
        assert at_rest(services)


async def test_one_that_hangs_does_not_keep_the_next_from_being_told() -> None:
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    same: dict[str, Any] = {"engine": "sglang", "kv_connector": "sglang", "role": "decode"}
    at = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with silent, world(make_endpoint(at, "small", **same)) as (services, prefill, decode):
        prefill.status = 500
        prefill.may_answer.set()
        conversation, _ = await ask(services)
        await until(lambda: len(decode.aborted) == 2)
        conversation.stream.close()


async def test_a_server_that_answers_it_alone_meanwhile_is_not_told() -> None:
    async with world() as (services, prefill, decode):
        alone = Server("", may_answer=asyncio.Event())
        app = web.Application()
        app.add_routes([web.post("/abort_request", alone.abort)])
        runner = web.AppRunner(app)
        await runner.setup()
        (port,) = free_ports(1)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        router = services.router
        router.pool = Pool([*router.pool.endpoints, ordinary(f"127.0.0.1:{port}")], {})
        prefill.status = 500
        prefill.may_answer.set()
        conversation, _ = await ask(services)
        await until(lambda: len(decode.aborted) == 2)
        assert alone.aborted == []
        conversation.stream.close()
        await runner.cleanup()


async def test_where_the_first_answers_nobody_the_second_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefilling, "LEAST_SILENCE_S", 0.2)
    async with world() as (services, prefill, decode):
        conversation, reply = await ask(services)
        rid = json.loads(reply.request_body.response.body_mutation.body)["rid"]
        await until(lambda: decode.aborted == [rid])
        await until(lambda: prefill.left == 1)
        assert dict(services.prefills.failed) == {"late": 1}
        conversation.say(response_headers(500, served=decode.address), response_trailers())
        conversation.stream.close()
        assert at_rest(services)
        prefiller, decoder = services.router.pool.endpoints
        assert (prefiller.health.doubtful, decoder.health.doubtful) == (True, False)


@dataclass
class Patient:
    """A request whose server of prompts answers others, until it was looked at often enough."""

    may_answer: asyncio.Event
    looks: int = 0
    may_be_at: tuple[str, ...] = ()
    is_over: bool = False

    @property
    def prefiller_is_silent(self) -> bool:
        self.looks += 1
        if self.looks == 3:
            self.may_answer.set()
        return False

    def prefill_came(self, now_s: float) -> None: ...

    def prefill_lost(self, now_s: float, *, blames: Blame) -> None: ...


async def test_a_first_that_is_late_but_answers_others_is_waited_for() -> None:
    async with world() as (_, prefill, _):
        waiting = Patient(prefill.may_answer)
        asked = Prefill(prefill.address, PLAIN, "/v1/chat/completions", chat(), (), within_s=0.05)
        assert await asked.done(waiting) == ""
        assert waiting.looks >= 3


def ordinary(address: str) -> Endpoint:
    """It does both halves, and is so far away that nobody chooses it first."""
    return make_endpoint(address, "small", engine="sglang", rtt_ms=10_000.0)


async def test_a_request_whose_pair_fails_goes_to_a_server_that_does_both_halves() -> None:
    async with world(ordinary("10.0.0.9:1")) as (services, prefill, decode):
        conversation, reply = await ask(services)
        assert destination(reply) == f"{decode.address},10.0.0.9:1,{decode.address}"
        assert set_headers(reply)["x-fairlead-prefilled"] == "else-alone"
        await until(lambda: prefill.asked)
        conversation.say(response_headers(200, served="10.0.0.9:1"))
        await until(lambda: prefill.left == 1)
        conversation.say(response_trailers())
        conversation.stream.close()
        assert at_rest(services)
        assert (services.prefills.done, decode.aborted) == (0, [])


async def test_a_server_is_not_blamed_for_a_prompt_that_it_waited_for_in_vain() -> None:
    async with world(ordinary("10.0.0.9:1")) as (services, prefill, decode):
        prefill.status = 500
        prefill.may_answer.set()
        conversation, _ = await ask(services)
        await until(lambda: decode.aborted)
        conversation.say(response_headers(200, served="10.0.0.9:1"), response_trailers())
        conversation.stream.close()
        assert at_rest(services)
        doubtful = {e.address for e in services.router.pool.endpoints if e.health.doubtful}
        assert doubtful == {prefill.address}
        await until(lambda: not services.prefills._alongside)


@pytest.mark.parametrize(("status", "done", "failed"), [(200, 1, {}), (500, 0, {"status": 1})])
async def test_an_answer_that_ends_before_the_first_has_said_so_waits_for_nobody(
    status: int, done: int, failed: dict[str, int]
) -> None:
    async with world() as (services, prefill, decode):
        prefill.status = status
        conversation, _ = await ask(services)
        await until(lambda: prefill.asked)
        conversation.say(response_headers(200, served=decode.address), response_trailers())
        conversation.stream.close()
        assert at_rest(services)
        prefill.may_answer.set()
        await until(lambda: not services.prefills._alongside)
        assert (services.prefills.done, dict(services.prefills.failed), prefill.left, decode.aborted) == (
            done,
            failed,
            0,
            [],
        )
        assert not any(endpoint.health.doubtful for endpoint in services.router.pool.endpoints)


async def test_a_client_that_leaves_leaves_both() -> None:
    async with world() as (services, prefill, _):
        conversation, _ = await ask(services)
        await until(lambda: prefill.asked)
        conversation.stream.close()
        await until(lambda: prefill.left == 1)
        assert at_rest(services)
        assert not any(endpoint.health.doubtful for endpoint in services.router.pool.endpoints)


FOR_ONE_SERVER: list[dict[str, Any]] = [{"n": 2}, {"echo": True}, {"prompt_logprobs": 0}]


@pytest.mark.parametrize("more", FOR_ONE_SERVER)
async def test_what_one_server_must_do_alone_is_refused(more: dict[str, Any]) -> None:
    async with world() as (services, prefill, _):
        conversation = Conversation(services)
        *_, reply = conversation.say(request_headers(), request_body(chat(**more)))
        assert reply.immediate_response.status.code == 400
        assert b"leave out n, " in reply.immediate_response.body
        conversation.stream.close()
        assert at_rest(services)
        assert prefill.asked == []


@pytest.mark.parametrize("more", FOR_ONE_SERVER)
async def test_what_one_server_must_do_alone_goes_to_the_one_that_can_however_busy_it_is(more: dict[str, Any]) -> None:
    alone = make_endpoint("10.0.0.9:1", "small", engine="sglang", inflight_requests=50, pending_prefill_tokens=50_000)
    async with world(alone) as (services, prefill, _):
        conversation = Conversation(services)
        *_, reply = conversation.say(request_headers(), request_body(chat(**more)))
        assert destination(reply) == ",".join(3 * [alone.address])
        conversation.stream.close()
        assert prefill.asked == []


async def test_a_stream_that_ends_after_its_prompt_was_lost_leaves_nobody_who_aborts_it() -> None:
    """SGLang has sent the status of a stream before it fails, and what comes next is seen of a sample only."""
    async with world() as (services, prefill, decode):
        prefill.status = 500
        prefill.may_answer.set()
        conversation, _ = await ask(services, stream=True)
        await until(lambda: decode.aborted)
        conversation.say(response_headers(200, served=decode.address), response_trailers())
        conversation.stream.close()
        assert at_rest(services)
        await until(lambda: not services.prefills._alongside)
