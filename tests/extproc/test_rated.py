"""A tenant's rate limit on the request path: what is paid, what the client is told, and what is given back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf

import pytest

from fairlead.admission.rates import Rate, RateRules
from fairlead.core.budget import ObservationBudget
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.services import Services
from fairlead.extproc.waiting_room import Naming
from tests.extproc.test_waiting import Room
from tests.extproc.world import (
    Conversation,
    chat,
    destination,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    set_headers,
    streamed_headers,
)

NAMING = Naming(tenant_headers=(b"x-tenant",))
FORM = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nsound\r\n--b--\r\n'


class World:
    def __init__(self, *, busy: bool = False, tokens: float = 10_000.0, engine_ms: float = inf) -> None:
        self.room = Room(busy=busy)
        self.room.use(self.room.rules if busy else None, NAMING)
        self.services: Services = self.room.services
        self.services.tenant_header = b"x-tenant"
        self.services.rates.use(RateRules(others=Rate(tokens, engine_ms)), self.room.clock())
        self.tokens = tokens
        self._asked: list[Conversation] = []

    def ask(self, tenant: str = "t", model: str = "small", secret: bytes = b"", **more: object) -> Conversation:
        conversation = Conversation(self.services)
        self._asked.append(conversation)
        body = json.dumps(json.loads(chat(model)) | more).encode()
        inner = {"x-fairlead-inner": secret.decode()} if secret else {}
        conversation.say(request_headers(extra={"x-tenant": tenant, **inner}), request_body(body))
        return conversation

    def paid(self, tenant: bytes = b"t") -> float:
        return self.tokens - dict(self.services.rates.all_levels(self.room.clock()))[tenant][0].left

    def close(self) -> None:
        for conversation in self._asked:
            conversation.stream.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def limited(reply: pb.ProcessingResponse) -> bool:
    if not reply.HasField("immediate_response"):
        return False
    answer = reply.immediate_response
    assert answer.status.code == 429
    assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"
    assert int(set_headers(reply)["retry-after"]) >= 1
    return True


def test_a_tenant_pays_for_its_prompt_and_for_the_answer_that_it_allows(world: World) -> None:
    world.ask(max_tokens=10)
    few = world.paid()
    world.ask("u", max_tokens=60)
    assert world.paid(b"u") == few + 50


def test_each_answer_that_it_asks_for_is_paid(world: World) -> None:
    world.ask(max_tokens=10)
    one = world.paid()
    world.ask("u", max_tokens=10, n=8)
    assert world.paid(b"u") == one + 70


def test_an_embedding_pays_for_its_text_alone(world: World) -> None:
    body = json.dumps({"model": "small", "input": "hello " * 100}).encode()
    Conversation(world.services).say(
        request_headers(path="/v1/embeddings", extra={"x-tenant": "t"}), request_body(body)
    )
    assert 50 < world.paid() < 200


@pytest.mark.parametrize(
    ("path", "body", "content_type"),
    [
        ("/v1/rerank", b'{"query": "lighthouse", "documents": ["keeper", "sea"]}', "application/json"),
        ("/v1/audio/speech", b'{"input": "hello"}', "application/json"),
        ("/v1/audio/transcriptions", FORM, "multipart/form-data; boundary=b"),
    ],
)
def test_leaving_the_model_out_saves_nothing(world: World, path: str, body: bytes, content_type: str) -> None:
    """Engines answer such requests as their only model."""
    conversation = Conversation(world.services)
    headers = {"x-tenant": "t", "content-type": content_type}
    conversation.say(request_headers(path=path, extra=headers), request_body(body))
    assert destination(conversation.replies[-1])
    assert world.paid() > 100
    conversation.stream.close()


def websocket(world: World, query: str = "?model=small") -> Conversation:
    conversation = Conversation(world.services)
    headers = {"x-tenant": "t", "connection": "Upgrade", "upgrade": "websocket"}
    conversation.say(request_headers("GET", f"/v1/realtime{query}", mode=pb.NONE, extra=headers))
    return conversation


@pytest.mark.parametrize("query", ["?model=small", "?model=auto", "?model=nobody", ""])
def test_a_websocket_pays_a_usual_answer_as_it_opens(world: World, query: str) -> None:
    """What is said over it passes unread."""
    asked = websocket(world, query)
    assert destination(asked.replies[-1])
    before = world.paid()
    assert before > 100
    asked.say(response_headers(101))
    assert set_headers(asked.replies[-1])["x-ratelimit-remaining-tokens"] == str(int(10_000 - before))
    asked.stream.close()
    assert world.paid() == before


def test_a_websocket_beyond_the_limit_is_refused_as_any_request() -> None:
    world = World(tokens=10)
    first = websocket(world)
    assert destination(first.replies[-1])
    assert limited(websocket(world).replies[-1])
    first.say(response_headers(404, end=True))
    assert world.paid() == 0, "the engine has refused the first"
    assert destination(websocket(world).replies[-1])


def test_engine_time_is_paid_for_a_websocket_too() -> None:
    world = World(tokens=inf, engine_ms=1.0)
    assert destination(websocket(world).replies[-1])
    assert limited(websocket(world).replies[-1])


@pytest.mark.parametrize("method", ["POST", "CONNECT"])
def test_a_request_pays_where_its_gateway_shows_no_bodies(world: World, method: str) -> None:
    conversation = Conversation(world.services)
    conversation.say(request_headers(method, mode=pb.NONE, extra={"x-tenant": "t"}))
    assert destination(conversation.replies[-1])
    assert world.paid() > 100
    conversation.stream.close()


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_who_only_looks_pays_nothing(world: World, method: str) -> None:
    conversation = Conversation(world.services)
    conversation.say(request_headers(method, "/health", end=True, extra={"x-tenant": "t"}))
    assert destination(conversation.replies[-1])
    assert world.services.rates.tenants == 0
    conversation.stream.close()


def test_beyond_its_limit_it_is_told_when_to_come_back_in_openais_envelope_and_headers() -> None:
    world = World(tokens=100)
    assert destination(world.ask(max_tokens=80).replies[-1])
    (reply,) = world.ask(max_tokens=80).replies[1:]
    assert limited(reply)
    headers = set_headers(reply)
    assert headers["x-llm-d-request-dropped-reason"] == "rejected-rate-limited"
    assert headers["x-ratelimit-limit-tokens"] == "100"
    assert int(headers["x-ratelimit-remaining-tokens"]) < 80
    assert headers["x-ratelimit-reset-tokens"].endswith("s")
    assert destination(world.ask("another").replies[-1])
    world.close()


def test_what_a_cascade_asks_for_a_client_counts_and_is_never_refused(world: World) -> None:
    """It is a part of a request that was granted; a client cannot pass itself off as one."""
    while not limited(world.ask(max_tokens=100).replies[-1]):
        pass
    before = world.paid()
    inner = world.ask(max_tokens=100, secret=world.services.cascades.escalation.secret)
    assert not limited(inner.replies[-1])
    assert world.paid() > before + 100
    assert limited(world.ask(max_tokens=100, secret=b"guessed").replies[-1])


def test_an_answer_says_what_is_left(world: World) -> None:
    asked = world.ask(max_tokens=10)
    asked.say(response_headers())
    headers = set_headers(asked.replies[-1])
    assert headers["x-ratelimit-limit-tokens"] == "10000"
    assert int(headers["x-ratelimit-remaining-tokens"]) == int(10_000 - world.paid())
    assert headers["x-fairlead-model"] == "small"


def test_without_a_limit_an_answer_says_nothing_of_it(world: World) -> None:
    world.services.rates.use(None, 0.0)
    asked = world.ask()
    asked.say(response_headers())
    assert not [name for name in set_headers(asked.replies[-1]) if name.startswith("x-ratelimit")]


def test_engine_time_is_a_limit_too() -> None:
    world = World(tokens=inf, engine_ms=1.0)
    assert destination(world.ask().replies[-1])
    (reply,) = world.ask().replies[1:]
    assert limited(reply)
    assert set_headers(reply)["x-ratelimit-limit-engine-ms"] == "1"
    world.close()


def test_what_an_engine_counted_replaces_what_was_expected(world: World) -> None:
    world.services.budget = ObservationBudget(1000.0, 10_000.0)
    asked = world.ask(max_tokens=50)
    asked.say(response_headers())
    usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    asked.say(response_body(json.dumps(usage).encode(), end=True))
    assert world.paid() == 10


@pytest.mark.parametrize("ends", [True, False], ids=["to its end", "until its client leaves"])
def test_a_stream_without_usage_pays_for_each_event_that_was_seen_beyond_what_was_expected(
    world: World, *, ends: bool
) -> None:
    world.services.budget = ObservationBudget(1000.0, 10_000.0)
    asked = world.ask()
    expected = world.paid()
    event = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    asked.say(streamed_headers(), response_body(event * 2000))
    if ends:
        asked.say(response_body(b"data: [DONE]\n\n", end=True))
    asked.stream.close()
    assert 2000 < world.paid() < 2000 + expected


def test_a_short_stream_without_usage_stays_paid_as_expected(world: World) -> None:
    """Engines send several tokens in one event."""
    world.services.budget = ObservationBudget(1000.0, 10_000.0)
    asked = world.ask()
    expected = world.paid()
    asked.say(streamed_headers(), response_body(b'data: {"choices":[{}]}\n\n' * 3, end=True))
    asked.stream.close()
    assert world.paid() == expected


def cost_after_answers_of(tokens: int) -> float:
    """Of a tenant's next request, over that of a tenant of which nothing is known; its answers were observed."""
    world = World(tokens=1e9)
    world.services.budget = ObservationBudget(1000.0, 10_000.0)
    world.ask("another")
    usage = {"usage": {"prompt_tokens": 7, "completion_tokens": tokens}}
    for _ in range(30):
        asked = world.ask()
        asked.say(response_headers(), response_body(json.dumps(usage).encode(), end=True))
        asked.stream.close()
    before = world.paid()
    world.ask()
    cost = (world.paid() - before) / world.paid(b"another")
    world.close()
    return cost


def test_who_has_long_answers_pays_for_them_before_they_are_counted() -> None:
    assert cost_after_answers_of(5000) > 5


def test_who_has_short_answers_pays_for_usual_ones() -> None:
    """Else long ones would cost next to nothing after some of them."""
    assert cost_after_answers_of(1) == 1


@pytest.mark.parametrize("code", [400, 429, 503])
def test_what_an_engine_refused_costs_nothing(world: World, code: int) -> None:
    asked = world.ask()
    assert world.paid() > 0
    asked.say(response_headers(code), response_trailers())
    asked.stream.close()
    assert world.paid() == 0


def test_an_answer_that_its_client_left_stays_paid(world: World) -> None:
    asked = world.ask()
    before = world.paid()
    asked.say(response_headers())
    asked.stream.close()
    assert world.paid() == before > 0


async def test_who_leaves_while_it_waits_has_paid_nothing() -> None:
    world = World(busy=True)
    asked = world.ask()
    assert world.room.waiting == 1
    assert world.paid() > 0
    asked.stream.close()
    assert world.paid() == 0


async def test_who_is_refused_by_the_queue_has_paid_nothing() -> None:
    world = World(busy=True)
    asked = world.ask()
    world.room.services.waiting.drain()
    assert world.paid() == 0
    asked.stream.close()


def test_a_model_that_nobody_serves_costs_nothing(world: World) -> None:
    asked = world.ask(model="nobody")
    assert asked.replies[-1].immediate_response.status.code == 404
    assert world.services.rates.tenants == 0
