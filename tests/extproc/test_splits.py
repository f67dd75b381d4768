"""A name that is shared out by weight, from the client's body to the engine's."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from fairlead.config import parse
from fairlead.core.splits import NO_REWRITES, Rewrites, Split
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.services import Services
from tests.extproc.world import (
    Conversation,
    chat,
    destination,
    make_services,
    request_body,
    request_headers,
    response_body,
    response_headers,
    set_headers,
)

HALVES = Split([("small", 1), ("large", 1)])


def services_with(rewrites: Rewrites) -> Services:
    services = make_services()
    services.rewrites, services.rng = rewrites, Random(1)
    return services


def ask(services: Services, model: str, **headers: str) -> tuple[str, dict[str, object]]:
    """The model that the engine is asked for, and its whole body."""
    conversation = Conversation(services)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    conversation.say(request_headers(extra=named), request_body(chat(model)))
    common = conversation.replies[-1].request_body.response
    body = json.loads(common.body_mutation.body or chat(model))
    is_large = "10.0.0.3" in (destination(conversation.replies[-1]) or "")
    assert body["model"] == ("large" if is_large else "small")  # whoever gets it serves it
    conversation.stream.close()
    return body["model"], body


def test_requests_are_shared_out_and_the_rest_of_the_body_stays() -> None:
    services = services_with(Rewrites({"chat": HALVES}))
    asked = [ask(services, "chat") for _ in range(200)]
    assert Counter(model for model, _ in asked)["large"] == pytest.approx(100, abs=30)
    assert all(body["messages"] == json.loads(chat())["messages"] for _, body in asked)


def test_a_session_stays_with_its_model() -> None:
    services = services_with(Rewrites({"chat": HALVES}))
    assert len({ask(services, "chat", x_session_id="s")[0] for _ in range(20)}) == 1


def test_a_served_model_may_be_split_and_a_rule_for_all_takes_unknown_names() -> None:
    services = services_with(Rewrites({"small": Split([("large", 1)])}, Split([("small", 1)])))
    assert ask(services, "small")[0] == "large"
    assert ask(services, "gpt-4o")[0] == "small"


def test_a_split_may_name_a_route() -> None:
    assert ask(services_with(Rewrites({"chat": Split([("auto", 1)])})), "chat")[0] in ("small", "large")


def test_what_a_cascade_asks_for_is_not_rewritten() -> None:
    services = services_with(Rewrites({"small": Split([("large", 1)])}))
    secret = services.cascades.escalation.secret
    assert ask(services, "small", x_fairlead_inner=secret.decode())[0] == "small"


def test_a_target_that_nobody_serves_is_a_404_for_the_name_that_was_asked() -> None:
    conversation = Conversation(services_with(Rewrites({"chat": Split([("gone", 1)])})))
    (reply,) = conversation.say(request_headers(), request_body(chat("chat")))[-1:]
    assert reply.immediate_response.status.code == 404
    assert "'chat'" in reply.immediate_response.body.decode()


def vouching(rewrites: Rewrites = NO_REWRITES, vouched_by: str = "{vouched_by: our gateway}") -> Services:
    config = parse(
        "pool: {endpoints: [{address: '10.0.0.1:1', model: small}]}\nadmission: " + vouched_by + "\n", "fairlead.yaml"
    )
    return replace(services_with(rewrites), config=config)


@pytest.mark.parametrize("name", ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"])
def test_a_gateway_that_is_vouched_for_names_the_model_to_send_instead(name: str) -> None:
    assert ask(vouching(), "small", **{name: "large"})[0] == "large"
    assert ask(vouching(vouched_by="{}"), "small", **{name: "large"})[0] == "small"
    assert ask(services_with(NO_REWRITES), "small", **{name: "large"})[0] == "small"


def test_the_new_name_of_the_header_wins_over_the_old_and_a_rewrite_of_the_pool_over_both() -> None:
    both = {"x-gateway-model-name-rewrite": "small", "x-llm-d-model-name-rewrite": "large"}
    assert ask(vouching(), "small", **both)[0] == "large"
    assert ask(vouching(Rewrites({"large": Split([("small", 1)])})), "large", **both)[0] == "small"


@pytest.mark.parametrize("vouched_by", ["{vouched_by: us}", "{}"])
def test_the_header_that_names_another_model_ends_here(vouched_by: str) -> None:
    conversation = Conversation(vouching(vouched_by=vouched_by))
    named = {"x-llm-d-model-name-rewrite": "large"}
    conversation.say(request_headers(extra=named), request_body(chat("small")))
    common = conversation.replies[-1].request_body.response
    assert list(common.header_mutation.remove_headers) == ["x-llm-d-model-name-rewrite"]
    conversation.stream.close()


def test_a_websocket_asks_for_the_rewritten_model() -> None:
    conversation = Conversation(services_with(Rewrites({"chat": Split([("large", 1)])})))
    conversation.say(request_headers("GET", "/v1/realtime?model=chat", mode=pb.NONE, end=True))
    assert set_headers(conversation.replies[-1])[":path"] == "/v1/realtime?model=large"
    assert "10.0.0.3" in (destination(conversation.replies[-1]) or "")


def test_the_answer_says_which_model_it_was_and_metrics_keep_known_names() -> None:
    services = services_with(Rewrites({"small": Split([("large", 1)])}, Split([("small", 1)])))
    for name in ("small", "any name of a client"):
        conversation = Conversation(services)
        conversation.say(request_headers(), request_body(chat(name)), response_headers(end=True))
        conversation.stream.close()
    assert {(key[0], key[1]) for key in services.recorder.requests} == {("small", "large"), ("small", "small")}


def answered(services: Services, kind: str, *parts: bytes, response_mode: pb.BodySendMode = pb.NONE) -> Conversation:
    mode = pb.FULL_DUPLEX_STREAMED if response_mode == pb.FULL_DUPLEX_STREAMED else pb.BUFFERED
    conversation = Conversation(services)
    conversation.say(request_headers(mode=mode, response_mode=response_mode), request_body(chat("chat")))
    headers = response_headers()
    length = str(sum(map(len, parts)))
    for key, value in (("content-type", kind), ("content-length", length)):
        headers.response_headers.headers.headers.append(pb.HeaderValue(key=key.encode(), raw_value=value.encode()))
    conversation.replies.clear()
    bodies = [response_body(part, end=number == len(parts) - 1) for number, part in enumerate(parts)]
    conversation.say(headers, *bodies)
    conversation.stream.close()
    return conversation


def asked_for_names() -> Services:
    services = services_with(Rewrites({"chat": Split([("large", 1)])}))
    gateway = services.config.gateway.model_copy(update={"answer_model": "asked"})
    services.config = services.config.model_copy(update={"gateway": gateway})
    return services


def test_an_answer_in_two_parts_has_the_clients_name() -> None:
    replies = answered(asked_for_names(), "application/json", b'{"model": "la', b'rge"}').replies
    assert replies[0].response_headers.response.header_mutation.remove_headers == ["content-length"]
    assert replies[0].mode_override.response_body_mode == pb.STREAMED
    first, second = (reply.response_body.response.body_mutation for reply in replies[1:])
    assert (first.clear_body, second.body) == (True, b'{"model": "chat"}')


def test_a_gateway_in_full_duplex_gets_it_in_its_own_way() -> None:
    services = asked_for_names()
    parts = b'data: {"model":"la', b'rge"}\n\ndata: [DONE]\n\n'
    replies = answered(services, "text/event-stream", *parts, response_mode=pb.FULL_DUPLEX_STREAMED).replies
    streamed = [reply.response_body.response.body_mutation.streamed_response for reply in replies[1:]]
    assert b"".join(each.body for each in streamed) == b'data: {"model":"chat"}\n\ndata: [DONE]\n\n'
    assert [each.end_of_stream for each in streamed] == [True]  # the first part is held back


def test_unless_it_is_wanted_the_engines_answer_is_not_looked_at() -> None:
    services = services_with(Rewrites({"chat": Split([("large", 1)])}))
    replies = answered(services, "application/json", b'{"model": "large"}').replies
    assert not replies[0].HasField("mode_override")
    assert not replies[1].response_body.response.HasField("body_mutation")
