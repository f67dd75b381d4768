"""The protocol with Envoy, message by message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cascade.route import CascadeRoute
from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.policies import build_policy
from fairlead.policies.registry import Rule
from tests.core.world import make_endpoint
from tests.extproc.world import (
    LIMIT_BYTES,
    Conversation,
    as_response,
    at_rest,
    chat,
    destination,
    kinds,
    make_services,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    services_around,
    set_headers,
    streamed,
    with_subset,
)

DUPLEX = pb.FULL_DUPLEX_STREAMED
BODY = chat()

PROTOCOL = {
    "buffered: headers are answered at once, the pick is on the body": (
        [request_headers(), request_body(BODY), response_headers(), response_trailers()],
        ["request_headers", "request_body", "response_headers", "response_trailers"],
    ),
    "buffered: every body message is the whole body, as it has no end of stream where trailers follow": (
        [request_headers(), request_body(BODY, end=False), response_headers(), response_trailers()],
        ["request_headers", "request_body", "response_headers", "response_trailers"],
    ),
    "buffered: a second end of stream is answered and changes nothing": (
        [request_headers(), request_body(BODY), request_body(b"")],
        ["request_headers", "request_body", "request_body"],
    ),
    "buffered: request trailers are answered": (
        [request_headers(), request_body(BODY), request_trailers()],
        ["request_headers", "request_body", "request_trailers"],
    ),
    "duplex: nothing is answered before the whole body is here": (
        [request_headers(mode=DUPLEX), request_body(BODY, end=False)],
        [],
    ),
    "duplex: then headers and body go back": (
        [request_headers(mode=DUPLEX), request_body(BODY, end=False), request_body(b"")],
        ["request_headers", "request_body."],
    ),
    "duplex: a second end of stream is not answered": (
        [request_headers(mode=DUPLEX), request_body(BODY), request_body(b"")],
        ["request_headers", "request_body."],
    ),
    "duplex: trailers end the body, so the end of stream is theirs": (
        [request_headers(mode=DUPLEX), request_body(BODY, end=False), request_trailers()],
        ["request_headers", "request_body+", "request_trailers"],
    ),
    "duplex: a body that is unread is streamed as it comes": (
        [request_headers("GET", "/v1/files", mode=DUPLEX), request_body(b"a", end=False), request_body(b"b")],
        ["request_headers", "request_body+", "request_body."],
    ),
    "duplex: a response body is streamed as it comes": (
        [
            request_headers(mode=DUPLEX, response_mode=DUPLEX),
            request_body(BODY),
            response_headers(),
            response_body(b"x"),
            response_body(b"", end=True),
        ],
        ["request_headers", "request_body.", "response_headers", "response_body+", "response_body."],
    ),
    "headers only": ([request_headers("GET", "/health", end=True)], ["request_headers"]),
    "headers only, duplex": ([request_headers("GET", "/health", mode=DUPLEX, end=True)], ["request_headers"]),
    "a response body that is only shown is answered": (
        [request_headers(), request_body(BODY), response_headers(), response_body(b"x", end=True)],
        ["request_headers", "request_body", "response_headers", "response_body"],
    ),
    "an empty generation request is refused on its headers": (
        [request_headers(end=True)],
        ["immediate_response"],
    ),
    "no body will come: picked on the headers": ([request_headers(mode=pb.NONE)], ["request_headers"]),
    "streamed without duplex cannot be routed by body: picked on the headers": (
        [request_headers(mode=pb.STREAMED), request_body(BODY)],
        ["request_headers", "request_body"],
    ),
    "a message without content is not answered": ([pb.ProcessingRequest()], []),
}


@pytest.mark.parametrize("case", PROTOCOL, ids=str)
def test_protocol(case: str) -> None:
    messages, expected = PROTOCOL[case]
    assert kinds(Conversation().say(*messages)) == expected


def test_the_destination_stands_in_the_header_and_in_the_metadata() -> None:
    _, picked = Conversation().say(request_headers(), request_body(chat("large")))
    assert destination(picked) == "10.0.0.3:1,10.0.0.3:1,10.0.0.3:1"


def test_fallbacks_serve_the_chosen_model_and_no_other() -> None:
    _, picked = Conversation().say(
        request_headers(), request_body(chat("auto", metadata={"attempted_models": ["large"]}))
    )
    assert set((destination(picked) or "").split(",")) == {"10.0.0.1:1", "10.0.0.2:1"}


def test_without_fallbacks_one_address_is_given() -> None:
    _, picked = Conversation(make_services(fallbacks=0)).say(request_headers(), request_body(BODY))
    assert destination(picked) in ("10.0.0.1:1", "10.0.0.2:1")


def test_the_route_cache_is_cleared_so_that_the_route_of_picked_requests_applies() -> None:
    _, picked = Conversation().say(request_headers(), request_body(BODY))
    assert picked.request_body.response.clear_route_cache


def test_a_body_that_needs_no_change_is_not_sent_back() -> None:
    _, picked = Conversation().say(request_headers(), request_body(BODY))
    assert not picked.request_body.response.HasField("body_mutation")


def test_a_route_name_is_replaced_in_the_body_with_its_new_length() -> None:
    body = b'{ "n": 123456789012345678901, "model" : "auto", "messages":[{"role":"user","content":"\xe3\x81\x82"}] }'
    _, picked = Conversation().say(request_headers(), request_body(body))
    changed = picked.request_body.response.body_mutation.body
    model = json.loads(changed)["model"]
    assert changed == body.replace(b'"auto"', b'"%s"' % model.encode())
    assert set_headers(picked)["content-length"] == str(len(changed))


def test_kv_transfer_params_of_a_client_are_never_believed() -> None:
    body = chat(kv_transfer_params={"do_remote_prefill": True, "remote_bootstrap_addr": "http://evil:1"})
    _, picked = Conversation().say(request_headers(), request_body(body))
    assert json.loads(picked.request_body.response.body_mutation.body)["kv_transfer_params"] is None


def test_a_large_duplex_body_goes_back_whole_in_chunks_that_envoy_takes() -> None:
    body = chat(padding="x" * 200_000)
    replies = Conversation().say(
        request_headers(mode=DUPLEX), request_body(body[:70_000], end=False), request_body(body[70_000:])
    )
    assert streamed(replies) == body
    chunks = [r.request_body.response.body_mutation.streamed_response for r in replies[1:]]
    assert max(len(chunk.body) for chunk in chunks) <= 62_000
    assert [chunk.end_of_stream for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_headers_that_a_client_may_not_set_are_removed() -> None:
    sent = {
        "x-fairlead-model": "x",
        "x-envoy-original-dst-host": "1.2.3.4:5",
        "x-gateway-destination-endpoint": "1.2.3.4:5",
    }
    _, picked = Conversation().say(request_headers(extra=sent), request_body(BODY))
    removed = picked.request_body.response.header_mutation.remove_headers
    assert set(removed) == {"x-fairlead-model", "x-envoy-original-dst-host"}
    assert "1.2.3.4:5" not in str(picked)


def test_header_values_may_stand_in_value_or_in_raw_value() -> None:
    replies = Conversation().say(request_headers("GET", "/v1/models", end=True, raw=False))
    assert kinds(replies) == ["immediate_response"]


@pytest.mark.parametrize("subset", [["10.0.0.2:1"], "10.0.0.2:1, 10.9.9.9:1"], ids=["list", "comma list"])
def test_a_subset_hint_is_obeyed(subset: list[str] | str) -> None:
    _, picked = Conversation().say(request_headers(subset=subset), request_body(BODY))
    assert set((destination(picked) or "").split(",")) == {"10.0.0.2:1"}


def test_a_subset_hint_may_come_with_the_body() -> None:
    _, picked = Conversation().say(request_headers(), with_subset(request_body(BODY), ["10.0.0.2:1"]))
    assert set((destination(picked) or "").split(",")) == {"10.0.0.2:1"}


@pytest.mark.parametrize(
    "subset", [[], "", ["10.0.0.2:2"], ["10.0.0.2"]], ids=["empty", "empty text", "port", "no port"]
)
def test_a_subset_that_holds_no_endpoint_of_ours_is_a_503(subset: list[str] | str) -> None:
    replies = Conversation().say(request_headers(subset=subset), request_body(BODY))
    assert replies[-1].immediate_response.status.code == 503
    assert set_headers(replies[-1])["retry-after"] == "1"


def test_a_body_over_the_limit_is_a_413_before_it_is_whole() -> None:
    half = b"x" * (LIMIT_BYTES // 2 + 1)
    replies = Conversation().say(
        request_headers(mode=DUPLEX), request_body(half, end=False), request_body(half, end=False)
    )
    assert [reply.immediate_response.status.code for reply in replies] == [413]


def test_no_healthy_endpoint_is_a_503() -> None:
    conversation = Conversation()
    conversation.endpoints["10.0.0.3:1"].health.healthy = False
    replies = conversation.say(request_headers(), request_body(chat("large")))
    assert replies[-1].immediate_response.status.code == 503


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"not json", 400, None),
        (b"", 400, None),
        (b"[]", 400, None),
        (b'{"messages":[]}', 400, "model"),
        (b'{"model":3}', 400, "model"),
        (b'{"model":null}', 400, "model"),
        (b'{"model":"small","messages":"hi"}', 400, "messages"),
        (b'{"model":"small","messages":[1]}', 400, "messages[0]"),
        (b'{"model":"\xff"}', 400, None),
        (b'{"model":"\\ud800"}', 400, None),
        (b'{"model":"auto","model":"auto"}', 400, None),
        (b'{"model":"small","messages":[{"content":' + b"[" * 10_000 + b"]" * 10_000 + b"}]}", 400, None),
        (b'{"model":"small","tools":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}", 400, None),
        (b'{"model":"no such model"}', 404, "model"),
    ],
)
def test_a_bad_body_is_refused_in_openais_envelope(body: bytes, status: int, param: str | None) -> None:
    conversation = Conversation()
    replies = conversation.say(request_headers(), request_body(body))
    answer = replies[-1].immediate_response
    error = json.loads(answer.body)["error"]
    assert (answer.status.code, error["param"]) == (status, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert all(endpoint.load.inflight_requests == 0 for endpoint in conversation.endpoints.values())


def test_the_answer_names_model_endpoint_and_decision_and_returns_the_request_id() -> None:
    conversation = Conversation()
    conversation.say(request_headers(), request_body(chat("large")))
    (reply,) = conversation.say(response_headers())
    assert set_headers(reply) == {
        "x-fairlead-model": "large",
        "x-fairlead-endpoint": "10.0.0.3:1",
        "x-fairlead-decision": "cost",
        "x-request-id": "id-1",
    }


def test_the_answer_of_a_pool_that_hides_its_addresses_names_no_endpoint() -> None:
    services = make_services()
    gateway = services.config.gateway.model_copy(update={"show_endpoint": False})
    hiding = services.config.model_copy(update={"gateway": gateway})
    conversation = Conversation(replace(services, config=hiding))
    conversation.say(request_headers(), request_body(chat("large")))
    (reply,) = conversation.say(response_headers())
    assert set(set_headers(reply)) == {"x-fairlead-model", "x-fairlead-decision", "x-request-id"}


def test_a_request_without_an_id_gets_one_that_is_sent_on_and_returned() -> None:
    conversation = Conversation()
    _, picked = conversation.say(request_headers(extra={"x-request-id": ""}), request_body(BODY))
    (answered,) = conversation.say(response_headers())
    made = set_headers(picked)["x-request-id"]
    assert len(made) == 32
    assert set_headers(answered)["x-request-id"] == made


def test_the_answer_names_the_endpoint_that_really_served_and_the_load_moves_there() -> None:
    conversation = Conversation()
    _, picked = conversation.say(request_headers(), request_body(BODY))
    first, second = (destination(picked) or "").split(",")[:2]
    (reply,) = conversation.say(response_headers(served=second))
    assert set_headers(reply)["x-fairlead-endpoint"] == second
    assert set_headers(reply)["x-fairlead-decision"] == "fallback"
    assert (
        conversation.endpoints[first].load.inflight_requests,
        conversation.endpoints[second].load.inflight_requests,
    ) == (0, 1)


def test_an_endpoint_that_failed_is_not_taken_to_hold_the_prompt() -> None:
    conversation = Conversation()
    long = [{"role": "user", "content": "x" * 4096}]
    _, picked = conversation.say(request_headers(), request_body(chat(messages=long)))
    first, second = (destination(picked) or "").split(",")[:2]
    index = conversation.services.router.index
    assert (index.blocks(first), index.blocks(second)) == (8, 0)
    conversation.say(response_headers(served=second))
    assert (index.blocks(first), index.blocks(second)) == (0, 8)


@pytest.mark.parametrize("end", ["trailers", "headers", "body", "cut"])
def test_the_load_is_given_back_whichever_way_the_request_ends(end: str) -> None:
    conversation = Conversation()
    conversation.say(request_headers(), request_body(BODY))
    assert sum(e.load.inflight_requests for e in conversation.endpoints.values()) == 1
    if end == "trailers":
        conversation.say(response_headers(), response_trailers())
    elif end == "headers":
        conversation.say(response_headers(end=True))
    elif end == "body":
        conversation.say(response_headers(), response_body(b"", end=True))
    conversation.stream.close()
    assert sum(e.load.inflight_requests for e in conversation.endpoints.values()) == 0
    assert sum(conversation.services.recorder.requests.values()) == 1


def test_a_client_that_leaves_before_the_answer_is_counted_as_499() -> None:
    conversation = Conversation()
    conversation.say(request_headers(), request_body(chat("large")))
    conversation.stream.close()
    assert conversation.services.recorder.requests == {("large", "large", "10.0.0.3:1", 499): 1}


def test_a_model_that_a_client_would_delete_is_no_question() -> None:
    (reply,) = Conversation().say(request_headers("DELETE", "/v1/models/small", end=True))
    assert not reply.HasField("immediate_response")


def test_models_lists_models_and_routes() -> None:
    (reply,) = Conversation().say(request_headers("GET", "/v1/models?limit=5", end=True))
    listed = json.loads(reply.immediate_response.body)
    assert [entry["id"] for entry in listed["data"]] == ["small", "large", "auto"]


@pytest.mark.parametrize("path", ["/v1/models/org/tiny", "/v1/models/org%2Ftiny", "/v1/models/org%2ftiny/"])
def test_a_model_with_a_slash_in_its_name_is_described_however_its_path_is_written(path: str) -> None:
    """As OpenAI's own client for JavaScript, clients escape what they put into a path."""
    pool = Pool([make_endpoint("10.0.0.1:1", "org/tiny")], {})
    router = Router(pool, build_policy("fairlead", {}), fallbacks=0, rng=Random(0))
    (reply,) = Conversation(services_around(router)).say(request_headers("GET", path, end=True))
    assert json.loads(reply.immediate_response.body)["id"] == "org/tiny"


@pytest.mark.parametrize(("attempted", "address"), [("", "10.0.0.1:1"), ("small", "10.0.0.3:1")])
def test_a_retry_of_a_cascade_does_not_begin_with_the_model_that_was_wrong(attempted: str, address: str) -> None:
    """The same model would give the same answer, and the judge would accept it again."""
    services = make_services()
    services.cascades.routes = {"auto": CascadeRoute("auto", ("small", "large"), (70.0,))}
    (_, reply) = Conversation(services).say(
        request_headers(extra={"x-fairlead-attempted-models": attempted}), request_body(chat("auto"))
    )
    assert (destination(reply) or "").split(",")[0] == address


@pytest.mark.parametrize(("model", "removed"), [("auto", ["accept-encoding"]), ("small", [])])
def test_an_answer_that_is_to_be_judged_is_asked_for_uncompressed(model: str, removed: list[str]) -> None:
    """OpenAI's client for Python offers gzip with each request, and a proxy in front of an engine may take it up."""
    services = make_services()
    services.cascades.routes = {"auto": CascadeRoute("auto", ("small", "large"), (70.0,))}
    headers = request_headers(extra={"accept-encoding": "gzip, deflate"})
    (_, reply) = Conversation(services).say(headers, request_body(chat(model)))
    assert list(reply.request_body.response.header_mutation.remove_headers) == removed


def test_an_escaped_path_is_read_like_the_plain_one() -> None:
    replies = Conversation().say(request_headers(path="/v1/chat/completion%73?x=1"), request_body(b"not json"))
    assert replies[-1].immediate_response.status.code == 400


class Broken(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:  # noqa: ARG002
        raise ZeroDivisionError("on purpose")


def test_a_policy_that_raises_costs_the_request_only_its_advice() -> None:
    conversation = Conversation(make_services(Broken()))
    _, picked = conversation.say(request_headers(), request_body(BODY))
    (answered,) = conversation.say(response_headers())
    assert (destination(picked) or "").split(",")[0] in ("10.0.0.1:1", "10.0.0.2:1")
    assert set_headers(answered)["x-fairlead-decision"] == "fallback"
    assert conversation.services.router.policy_failures == 1
    assert "on purpose" in conversation.services.router.last_policy_failure


@pytest.mark.parametrize("mode", [pb.BUFFERED, DUPLEX])
def test_what_is_passed_on_after_a_fault_of_ours_is_the_body_as_it_came(mode: pb.BodySendMode) -> None:
    conversation = Conversation()
    first, last = request_body(BODY[:5], end=False), request_body(BODY[5:])
    conversation.say(request_headers(mode=mode), first)
    conversation.stream.body.append(BODY[5:])  # as `on` does before it can fail
    replies = [as_response(reply) for reply in conversation.stream.give_up(last)]
    if mode == DUPLEX:
        assert kinds(replies) == ["request_headers", "request_body."]
        assert streamed(replies) == BODY
    else:
        assert kinds(replies) == ["request_body"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
FIELDS = (
    "model",
    "messages",
    "prompt",
    "input",
    "metadata",
    "tools",
    "system",
    "max_tokens",
    "kv_transfer_params",
    "x",
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON | st.just("auto") | st.just("small")))
def test_any_json_object_is_routed_or_refused_and_leaves_no_load(document: dict[str, object]) -> None:
    conversation = Conversation()
    replies = conversation.say(request_headers(), request_body(msgspec.json.encode(document)))
    assert kinds(replies)[-1] in ("request_body", "immediate_response")
    conversation.stream.close()
    assert all(endpoint.load.inflight_requests == 0 for endpoint in conversation.endpoints.values())


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_routed_without_an_exception(body: bytes) -> None:
    for path in ("/v1/chat/completions", "/generate"):
        replies = Conversation().say(request_headers(path=path), request_body(body))
        assert kinds(replies)[-1] in ("request_body", "immediate_response")


def test_a_prompt_that_kills_engines_is_refused_as_the_clients_fault_without_a_time_to_come_back() -> None:
    services = make_services(fallbacks=1)

    def served(body: bytes, status: int, at: str | None = None) -> str | None:
        conversation = Conversation(services)
        *_, routed = conversation.say(request_headers(), request_body(body))
        listed = destination(routed)
        if listed is not None:
            answer = response_headers(status, served=at or listed.split(",")[-1])
            if status == 503:
                answer.response_headers.headers.headers.add(key=b"x-fairlead-unanswered", raw_value=b"1")
            (shown,) = conversation.say(answer)
            removed = shown.response_headers.response.header_mutation.remove_headers
            assert ("x-fairlead-unanswered" in removed) is (status == 503)
            conversation.say(response_trailers())
        return listed

    def everything_works() -> None:
        for address in ("10.0.0.1:1", "10.0.0.2:1"):
            served(chat(user=address), 200, address)

    deadly = chat(messages=[{"role": "user", "content": "a prompt that kills"}])
    services = replace(services, clock_s=count(1.0).__next__)
    everything_works()
    assert set((served(deadly, 503) or "").split(",")) == {"10.0.0.1:1", "10.0.0.2:1"}
    everything_works()
    first, again = (served(deadly, 503) or "").split(",")  # the list is repeated, as Envoy tries as often
    assert first == again
    everything_works()
    *_, refused = Conversation(services).say(request_headers(), request_body(deadly))
    answer = refused.immediate_response
    assert answer.status.code == 422
    assert json.loads(answer.body)["error"]["code"] == "prompt_fails_engines"
    assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
    assert "retry-after" not in set_headers(refused)
    assert at_rest(services)
