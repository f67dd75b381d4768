"""The admin port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from fairlead.admin import rates
from fairlead.admin.app import admin_app
from fairlead.admission.rates import Rate, RateLimits, RateRules
from fairlead.config import Tenants
from fairlead.core.facts import session_key
from fairlead.core.observation import Observation
from fairlead.core.pool import Pool
from fairlead.core.reported import AnswerSums, EngineIdentity, EngineReport
from fairlead.core.running import LEAST_SAMPLES
from fairlead.extproc.recorder import KEPT_DECISIONS
from fairlead.processes import free_ports
from fairlead.serving.sidecar import Sidecar
from tests.extproc.world import (
    Conversation,
    chat,
    request_body,
    request_headers,
    response_headers,
    response_trailers,
)

Client = TestClient[Any, Any]


@pytest.fixture
def conversation() -> Conversation:
    return Conversation()


class Clock:
    """What time it is at the request path."""

    now_s = 100.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def admin(conversation: Conversation, clock: Clock) -> AsyncIterator[Client]:
    services = conversation.services
    services.clock_s = lambda: clock.now_s
    services.state = "ready"
    async with TestClient(TestServer(admin_app(services))) as client:
        yield client


async def test_it_is_alive_and_ready(admin: Client) -> None:
    assert [(await admin.get(path)).status for path in ("/healthz", "/readyz", "/metrics", "/debug/config")] == [
        200
    ] * 4


@pytest.mark.parametrize("state", ["starting", "draining"])
async def test_it_is_alive_but_not_ready_before_and_after(
    admin: Client, conversation: Conversation, state: Literal["starting", "draining"]
) -> None:
    conversation.services.state = state
    answer = await admin.get("/readyz")
    assert (answer.status, await answer.text()) == (503, f"{state}\n")
    assert (await admin.get("/healthz")).status == 200


async def test_it_is_not_ready_before_endpoints_are_known(admin: Client, conversation: Conversation) -> None:
    services = conversation.services
    services.router.pool, services.pool_is_known = Pool([], {}), False
    answer = await admin.get("/readyz")
    assert (answer.status, await answer.text()) == (503, "no endpoints\n")


async def test_decisions_come_newest_first_and_as_many_as_asked(admin: Client, conversation: Conversation) -> None:
    for number in range(3):
        one = Conversation(conversation.services)
        one.say(request_headers(extra={"x-request-id": f"id-{number}"}), request_body(chat("large")))
        one.say(response_headers(), response_trailers())
    shown = (await (await admin.get("/debug/decisions?limit=2")).json())["decisions"]
    assert [decision["request_id"] for decision in shown] == ["id-2", "id-1"]
    assert shown[0]["best"][0]["terms"]["total_ms"] == pytest.approx(shown[0]["best"][0]["score"])


async def test_a_requests_story_is_its_decisions_and_how_each_ended(admin: Client, conversation: Conversation) -> None:
    for headers, code in (({}, 200), ({"x-fairlead-attempted-models": "large"}, 500)):
        one = Conversation(conversation.services)
        one.say(request_headers(extra={"x-request-id": "mine"} | headers), request_body(chat("auto")))
        one.say(response_headers(code), response_trailers())
    other = Conversation(conversation.services)
    other.say(request_headers(extra={"x-request-id": "other"}), request_body(chat("large")))
    events = (await (await admin.get("/debug/requests/mine")).json())["events"]
    assert sorted(each["event"] for each in events) == ["decision", "decision", "ended", "ended"]
    assert [each["attempted"] for each in events if each["event"] == "decision"] == [[], ["large"]]
    ended = [each for each in events if each["event"] == "ended"]
    assert [each["code"] for each in ended] == [200, 500]
    assert ended[0]["endpoint"] == events[0]["endpoints"][0]
    assert ended[0]["first_token_ms"] is None
    (running,) = (await (await admin.get("/debug/requests/other")).json())["events"]
    assert running["event"] == "decision"


async def test_the_story_of_a_refused_request_is_the_sentence_it_got(admin: Client, conversation: Conversation) -> None:
    one = Conversation(conversation.services)
    one.say(request_headers(extra={"x-request-id": "a/b"}), request_body(chat("nobody")))
    (event,) = (await (await admin.get(URL("/debug/requests/a%2Fb", encoded=True))).json())["events"]
    assert (event["event"], event["code"]) == ("refused", 404)
    assert "'nobody' is neither served" in event["message"]


async def test_a_request_id_of_bytes_or_of_any_length_is_found(admin: Client, conversation: Conversation) -> None:
    for request_id in ("caf\u00e9", "x" * 300):
        one = Conversation(conversation.services)
        one.say(request_headers(extra={"x-request-id": request_id}), request_body(chat("large")))
        shown = (await (await admin.get("/debug/decisions?limit=1")).json())["decisions"][0]["request_id"]
        for asked in (request_id, shown):
            assert (await admin.get(URL(f"/debug/requests/{quote(asked)}", encoded=True))).status == 200


async def test_a_request_that_is_not_kept_is_a_sentence(admin: Client) -> None:
    response = await admin.get("/debug/requests/never")
    assert (response.status, "x-request-id" in await response.text()) == (404, True)


async def test_a_flood_of_refusals_displaces_no_ending(admin: Client, conversation: Conversation) -> None:
    one = Conversation(conversation.services)
    one.say(request_headers(extra={"x-request-id": "mine"}), request_body(chat("large")))
    one.say(response_headers(), response_trailers())
    for _ in range(KEPT_DECISIONS + 10):
        refused = Conversation(conversation.services)
        refused.say(request_headers(extra={"x-request-id": "flood"}), request_body(b"{"))
    assert len((await (await admin.get("/debug/requests/mine")).json())["events"]) == 2
    assert len((await (await admin.get("/debug/requests/flood")).json())["events"]) == KEPT_DECISIONS


async def test_a_limit_that_is_no_number_is_reported(admin: Client) -> None:
    response = await admin.get("/debug/decisions?limit=-1")
    assert (response.status, "must be a number" in await response.text()) == (400, True)


async def test_only_the_last_decisions_are_kept(conversation: Conversation) -> None:
    for _ in range(KEPT_DECISIONS + 10):
        one = Conversation(conversation.services)
        one.say(request_headers(), request_body(chat()))
        one.stream.close()
    conversation.services.recorder.settle()
    assert len(conversation.services.recorder.decisions) == KEPT_DECISIONS


async def test_endpoints_show_load_cache_sessions_and_what_the_engine_says(
    admin: Client, conversation: Conversation, clock: Clock
) -> None:
    first = conversation.endpoints["10.0.0.3:1"]
    first.rtt_ms = 1.5
    first.identified(EngineIdentity("0.32.0", ("large",), 8192))
    first.report = EngineReport(running_requests=2, kv_usage=0.25, read_s=clock.now_s - 2, stale=False)
    prompt = {"messages": [{"role": "user", "content": "long ago " * 500}]}
    for _ in range(2):  # the second finds the first one's prefix
        one = Conversation(conversation.services)
        one.say(request_headers(extra={"x-session-id": "s"}), request_body(chat("large", **prompt)))
    pool = (await (await admin.get("/debug/endpoints")).json())["endpoints"]
    assert [shown["address"] for shown in pool] == ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]
    shown = pool[2]
    assert {name: shown[name] for name in ("model", "version", "max_model_len", "healthy", "rtt_ms", "sessions")} == {
        "model": "large",
        "version": "0.32.0",
        "max_model_len": 8192,
        "healthy": True,
        "rtt_ms": 1.5,
        "sessions": 1,
    }
    assert (shown["inflight_requests"], shown["decisions"], shown["indexed_blocks"]) == (2, 2, 8)
    assert 0 < shown["prefix_hit_tokens"] <= shown["prompt_tokens"] / 2
    assert shown["pending_prefill_tokens"] == shown["prompt_tokens"] - shown["prefix_hit_tokens"]
    assert (shown["reported"]["running_requests"], shown["reported"]["read_ago_s"]) == (2, 2)
    assert shown["reported"]["waiting_requests"] is None  # unknown is not 0


async def test_a_restarted_endpoint_has_nothing_cached(admin: Client, conversation: Conversation) -> None:
    long = [{"role": "user", "content": "x" * 4096}]
    conversation.say(request_headers(), request_body(chat("large", messages=long)))
    shown = (await (await admin.get("/debug/endpoints")).json())["endpoints"][2]
    assert (shown["restarts"], shown["indexed_blocks"]) == (0, 8)
    conversation.endpoints["10.0.0.3:1"].generation += 1
    shown = (await (await admin.get("/debug/endpoints")).json())["endpoints"][2]
    assert (shown["restarts"], shown["indexed_blocks"], shown["cached_tokens"]) == (1, 0, 0)


async def test_constants_say_whether_answers_taught_them(admin: Client, conversation: Conversation) -> None:
    seen = Observation("10.0.0.3:1", "large", 1000, 0, 0.0, first_token_ms=50.0, prompt_tokens=1000, cached_tokens=0)
    for _ in range(LEAST_SAMPLES):
        conversation.services.learner.observe(seen, conversation.services.router.pool)
    conversation.services.learner.settle(conversation.services.router.pool)
    pool = (await (await admin.get("/debug/endpoints")).json())["endpoints"]
    assert pool[2]["prefill"] == {
        "ms_per_token": pytest.approx(0.05, rel=0.01),
        "source": "learned",
        "samples": LEAST_SAMPLES,
        "endpoint_samples": LEAST_SAMPLES,
        "endpoint_factor": 1.0,
        "oldest_sample_s": pool[2]["prefill"]["oldest_sample_s"],
        "learned": True,
    }
    assert (pool[0]["prefill"]["ms_per_token"], pool[0]["prefill"]["source"]) == (0.1, "default")


async def test_constants_say_when_they_are_what_engines_say(admin: Client, conversation: Conversation) -> None:
    pool = conversation.services.router.pool
    sums = AnswerSums(answers=100, prefill_s=20.0, computed_tokens=100_000)
    conversation.endpoints["10.0.0.3:1"].report = EngineReport(sums=sums, read_s=1.0)
    conversation.services.learner.read_reports(pool)
    shown = (await (await admin.get("/debug/endpoints")).json())["endpoints"][2]
    assert [(shown[of]["ms_per_token"], shown[of]["source"]) for of in ("prefill", "decode")] == [
        (pytest.approx(0.2), "reported"),
        (20.0, "default"),
    ]


async def test_a_session_shows_where_it_lives_and_for_how_long(
    admin: Client, conversation: Conversation, clock: Clock
) -> None:
    conversation.say(request_headers(extra={"x-session-id": "ünï/code d"}), request_body(chat("large")))
    clock.now_s += 60
    shown = await (await admin.get(f"/debug/sessions/{quote('ünï/code d', safe='')}")).json()
    assert shown == {
        "endpoint": "10.0.0.3:1",
        "model": "large",
        "healthy": True,
        "bound_for_s": shown["idle_s"],
        "idle_s": 60,
        "expires_in_s": 3540,
    }


async def test_a_session_is_found_with_its_tenant_only(admin: Client, conversation: Conversation) -> None:
    key = session_key(b"s", b"acme")
    conversation.services.router.sessions.bind(key, "10.0.0.1:1", 100.0)
    assert (await admin.get("/debug/sessions/s?tenant=acme")).status == 200
    assert (await admin.get("/debug/sessions/s?tenant=other")).status == 404


@pytest.mark.parametrize("unknown", ["nobody", "%FF%00", "a" * 4000, "%F0%9F%92%A9", "<script>"])
async def test_a_session_that_is_not_known_is_answered_with_a_sentence(admin: Client, unknown: str) -> None:
    response = await admin.get(URL(f"/debug/sessions/{unknown}", encoded=True))
    text = await response.text()
    assert (response.status, response.content_type) == (404, "text/plain")
    assert text.startswith("this sidecar knows no such session: no request named it, it was idle for more than 3600 s")
    assert "x-session-id" in text
    assert "script" not in text


async def test_with_tenants_the_sentence_says_what_to_add(admin: Client, conversation: Conversation) -> None:
    services = conversation.services
    services.config = services.config.model_copy(update={"tenants": Tenants(header="x-tenant")})
    assert "add ?tenant= and the value of x-tenant" in await (await admin.get("/debug/sessions/s")).text()
    assert "add ?tenant=" not in await (await admin.get("/debug/sessions/s?tenant=t")).text()


async def test_status_counts_requests_by_what_became_of_them(admin: Client, conversation: Conversation) -> None:
    for code in (200, 200, 404, 503):
        one = Conversation(conversation.services)
        one.say(request_headers(), request_body(chat("large")), response_headers(code), response_trailers())
    left = Conversation(conversation.services)
    left.say(request_headers(), request_body(chat("large")))
    left.stream.close()
    Conversation(conversation.services).say(request_headers(), request_body(chat("no such model")))
    conversation.services.recorder.running_streams = 3
    shown = await (await admin.get("/debug/status")).json()
    assert shown["requests"] == {"ok": 2, "client_error": 1, "server_error": 1, "client_left": 1, "refused": 1}
    assert (shown["decisions"], shown["ready"], shown["running_streams"]) == (5, True, 3)
    assert shown["policy"]["name"] == "fairlead"
    assert shown["policy"]["parameters"]["retry_penalty"] == 1e6


async def test_no_page_shows_a_prompt_a_session_or_a_password(tmp_path: Path) -> None:
    grpc, port = free_ports(2)
    file = tmp_path / "fairlead.yaml"
    file.write_text(
        f"listen: {{grpc: '127.0.0.1:{grpc}', admin: '127.0.0.1:{port}'}}\n"
        "pool: {endpoints: [{address: '127.0.0.1:1', model: small}]}\n"
        "sessions: {store: 'redis://user:hush@127.0.0.1:1/0'}\n"
        "tracing: {endpoint: 'http://user:hush@127.0.0.1:1'}\n"
    )
    async with Sidecar(file) as sidecar, ClientSession(f"http://127.0.0.1:{port}") as client:
        headers = request_headers(extra={"x-session-id": "private-session"})
        Conversation(sidecar.services).say(
            headers, request_body(chat(messages=[{"role": "user", "content": "private prompt " * 100}]))
        )
        paths = ("config", "status", "endpoints", "decisions", "sessions/private-session")
        pages = [await (await client.get(f"/debug/{path}")).text() for path in paths]
        pages.append(await (await client.get("/metrics")).text())
    assert '"store":"redis://127.0.0.1:1/0"' in pages[0]
    assert '"endpoint":"http://127.0.0.1:1"' in pages[0]
    assert '"endpoint":"127.0.0.1:1"' in pages[4]
    assert [secret for secret in ("hush", "private") if any(secret in page for page in pages)] == []


async def test_many_tenants_limits_are_shown_in_steps_between_which_requests_go_in() -> None:
    limits = RateLimits()
    limits.use(RateRules(others=Rate(tokens=1000.0)), 0.0)
    for number in range(2000):
        limits.take(b"%d" % number, float(number % 1000), 0.0, 0.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    shown = await rates.document(limits, 0.0)
    running.cancel()
    assert turns > 5
    assert [each["limits"]["tokens"]["left"] for each in shown[:4]] == [1, 1, 2, 2]
