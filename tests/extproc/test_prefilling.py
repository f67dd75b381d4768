"""A request is held in Envoy while another engine computes its prompt, and goes on whatever becomes of that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from fairlead.admission.admission import Admission, Rules
from fairlead.admission.limits import QueueRules
from fairlead.core.pool import Pool
from fairlead.core.reported import EngineIdentity
from fairlead.core.router import Router
from fairlead.extproc import prefilling
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.services import Services
from fairlead.extproc.waiting_room import Naming, WaitingRoom
from fairlead.policies import build_policy
from fairlead.processes import free_ports
from fairlead.tools.simulate.faults import Fault
from fairlead.tools.simulate.kv_exchange import KvOptions
from fairlead.tools.simulate.server import EngineOptions, RunningEngine, running_engine
from tests.core.world import carries, make_endpoint
from tests.extproc.world import (
    Conversation,
    at_rest,
    chat,
    destination,
    kinds,
    later,
    request_body,
    request_headers,
    response_headers,
    response_trailers,
    services_around,
    set_headers,
    streamed,
)
from tests.waiting import until

DECODE = "10.0.0.2:1"
SAFE = EngineIdentity("0.32.0")
PROMPT = "Some words of a prompt that takes long to compute. " * 50


NIXL = KvOptions("nixl")


@asynccontextmanager
async def world(kv: KvOptions | None = NIXL) -> AsyncIterator[tuple[Services, RunningEngine]]:
    """A simulated engine that prefills, and one that decodes and is busy. Nobody asks the second one here."""
    async with running_engine(EngineOptions(model="small", time_scale=50.0, kv=kv)) as engine:
        same: dict[str, Any] = {"kv_connector": "nixl", "identity": SAFE, "prefill_ms_per_token": 1.0}
        endpoints = [
            make_endpoint(engine.address, "small", role="prefill", **same),
            make_endpoint(DECODE, "small", role="decode", **same),
        ]
        carries(endpoints[1], inflight_requests=8, decoding_requests=8)
        router = Router(Pool(endpoints, {}), build_policy("fairlead", {}), fallbacks=2, rng=Random(0))
        yield services_around(router, asyncio.get_running_loop().time), engine


def asked(services: Services, mode: pb.BodySendMode = pb.BUFFERED, prompt: str = PROMPT, **more: Any) -> Conversation:
    conversation = Conversation(services)
    body = chat(messages=[{"role": "user", "content": prompt}], **more)
    conversation.say(request_headers(mode=mode), request_body(body))
    return conversation


def body_sent(reply: pb.ProcessingResponse) -> dict[str, Any]:
    return dict(json.loads(reply.request_body.response.body_mutation.body))


async def test_it_goes_out_with_the_place_of_its_kv() -> None:
    async with world() as (services, engine):
        conversation = asked(services)
        assert [reply.override_message_timeout.seconds > 60 for reply in conversation.replies[1:]] == [True]
        (reply,) = await later(conversation)
        assert destination(reply) == f"{DECODE},{DECODE},{DECODE}"
        headers, sent = set_headers(reply), body_sent(reply)
        parameters = sent.pop("kv_transfer_params")
        assert sent == json.loads(chat(messages=[{"role": "user", "content": PROMPT}]))
        assert (parameters["do_remote_prefill"], parameters["do_remote_decode"]) == (True, False)
        assert engine.exchange is not None
        assert parameters["remote_engine_id"] == engine.exchange.engine_id
        assert headers["x-fairlead-prefilled"] == "1"
        length = reply.request_body.response.body_mutation.body
        assert headers["content-length"] == str(len(length))
        conversation.say(response_headers(200, served=DECODE), response_trailers())
        conversation.stream.close()
        assert at_rest(services)
        assert services.held.bytes == 0


async def test_in_full_duplex_it_waits_too() -> None:
    async with world() as (services, _):
        conversation = asked(services, pb.FULL_DUPLEX_STREAMED)
        assert conversation.replies == []
        replies = await later(conversation)
        assert kinds(replies) == ["request_headers", "request_body."]
        assert "kv_transfer_params" in json.loads(streamed(replies))
        conversation.stream.close()
        assert at_rest(services)


@pytest.mark.parametrize(
    ("fault", "blamed"),
    [
        (Fault("error", status=500), True),
        (Fault("error", status=400), False),
        (Fault("error", status=429), False),
        (Fault("reset"), True),
        (Fault("hang"), True),
    ],
)
async def test_a_prefill_that_fails_or_is_late_is_left_to_its_own_endpoint(
    fault: Fault, blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault.kind == "hang":
        monkeypatch.setattr(prefilling, "MOST_PREFILL_S", 0.5)
    async with world() as (services, engine):
        engine.faults.set(fault)
        prefiller = services.router.pool.by_address[engine.address]
        for number in range(1, 6):
            conversation = asked(services, prompt=f"{number} {PROMPT}")
            (reply,) = await later(conversation)
            assert destination(reply) is not None
            assert not reply.request_body.response.body_mutation.body  # as the client sent it
            assert "x-fairlead-prefilled" not in set_headers(reply)
            assert services.prefills.failed.total() == number
            conversation.say(response_headers(200, served=DECODE), response_trailers())
            conversation.stream.close()
        assert prefiller.health.healthy != blamed
        assert at_rest(services)


async def test_an_engine_without_the_connector_gives_no_place_and_its_prompt_is_computed_here() -> None:
    async with world(kv=None) as (services, _):
        conversation = asked(services)
        (reply,) = await later(conversation)
        assert not reply.request_body.response.body_mutation.body
        assert dict(services.prefills.failed) == {"export_incomplete": 1}
        conversation.stream.close()
        assert at_rest(services)


ANSWERS = {
    "export_incomplete": b'{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":9}}',
    "finish_reason": b'{"choices":[{"finish_reason":"stop"}],"kv_transfer_params":{}}',
    "foreign": b"<html>It works!</html>",
}


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[str]:
    """The address of a server that answers every completion with `body`."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body)

    app, (port,) = web.Application(), free_ports(1)
    app.add_routes([web.post("/v1/chat/completions", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("reason", ANSWERS)
async def test_an_engine_whose_prompts_come_to_nothing_is_asked_for_no_more_of_them_for_a_while(reason: str) -> None:
    async with answering(ANSWERS[reason]) as address:
        same: dict[str, Any] = {"kv_connector": "nixl", "identity": SAFE, "prefill_ms_per_token": 1.0}
        useless = make_endpoint(address, "small", role="prefill", **same)
        decoder = make_endpoint(DECODE, "small", role="decode", inflight_requests=8, decoding_requests=8, **same)
        router = Router(Pool([useless, decoder], {}), build_policy("fairlead", {}), fallbacks=2, rng=Random(0))
        services = services_around(router, lambda: 1.0)
        for number in range(8):
            conversation = asked(services, prompt=f"{number} {PROMPT}")
            if conversation.stream.held is not None:
                await later(conversation)
            conversation.stream.close()
        assert dict(services.prefills.failed) == {reason: 5}
        assert (useless.hops.outs, useless.health.doubtful) == (1, False)


async def test_a_client_that_leaves_meanwhile_ends_the_prefill() -> None:
    async with world() as (services, engine):
        engine.faults.set(Fault("hang"))
        conversation = asked(services)
        waiting = asyncio.ensure_future(later(conversation))
        await until(lambda: services.router.pool.endpoints[0].own.inflight_requests == 1, "it is being prefilled")
        waiting.cancel()
        conversation.stream.close()
        assert at_rest(services)
        assert services.router.pool.by_address[engine.address].health.healthy


async def test_an_internal_error_meanwhile_leaves_the_request_to_its_endpoint() -> None:
    async with world() as (services, _):
        services.prefills.compute = None  # type: ignore[assignment]
        conversation = asked(services)
        (reply,) = await later(conversation)
        assert destination(reply) is not None
        assert services.recorder.stream_failures == 1
        conversation.stream.close()
        assert at_rest(services)


async def test_a_request_that_waited_for_its_turn_is_prefilled_then() -> None:
    async with world() as (services, engine):
        waiting = WaitingRoom(Admission(services.router), services.clock_s, pytest.fail)
        services.waiting = waiting
        waiting.use(Rules(QueueRules(), 1000.0), Naming(), 30.0)
        prefiller, decoder = services.router.pool.endpoints
        busy = replace(decoder.load, pending_prefill_tokens=5000)
        decoder.load = busy
        conversation = asked(services)
        assert services.admission.queue.requests == 1
        decoder.load = replace(busy, pending_prefill_tokens=0)
        waiting._wake()
        (reply,) = await later(conversation)
        assert "kv_transfer_params" in body_sent(reply)
        assert services.prefills.done == 1
        conversation.stream.close()
        assert prefiller.own.inflight_requests == 0
        assert engine.engine.running == 0


async def test_what_it_shows_of_the_prefill_engine_is_learned() -> None:
    async with world() as (services, engine):
        conversation = asked(services)
        await later(conversation)
        assert (engine.address, "small") in services.learner.engines
        conversation.stream.close()


@pytest.mark.parametrize("more", [{"n": 2}, {"echo": True}, {"prompt_logprobs": 0}, {"truncate_prompt_tokens": -1}])
async def test_what_one_engine_must_do_alone_it_does(more: dict[str, Any]) -> None:
    async with world() as (services, engine):
        conversation = asked(services, **more)
        await later(conversation)
        assert dict(services.prefills.failed) == {"one_engine": 1}
        assert engine.engine.counters.prompt_computed == 0
        conversation.stream.close()
