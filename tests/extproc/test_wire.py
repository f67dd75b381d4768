"""Our minimal protos against Envoy's own definitions, as the package `envoy-data-plane` has them."""

from __future__ import annotations

from typing import Any

import pytest
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as filters
from envoy_data_plane.envoy.service.ext_proc import v3 as envoy

from fairlead.api import refusals
from fairlead.extproc import headers as h
from fairlead.extproc import replies
from fairlead.extproc.pb import ext_proc_pb2 as pb

HEADERS = core.HeaderMap(headers=[core.HeaderValue(key=":path", raw_value=b"/x"), core.HeaderValue(key="a", value="b")])


def ours(message: Any) -> pb.ProcessingRequest:
    return pb.ProcessingRequest.FromString(bytes(message))


def request(kind: str, content: Any) -> envoy.ProcessingRequest:
    fields: dict[str, Any] = {kind: content}
    return envoy.ProcessingRequest(**fields)


def theirs(reply: replies.Reply) -> Any:
    return envoy.ProcessingResponse.parse(replies.whole(reply))


@pytest.mark.parametrize("kind", ["request_headers", "response_headers"])
def test_headers_are_read(kind: str) -> None:
    message = ours(request(kind, envoy.HttpHeaders(headers=HEADERS, end_of_stream=True)))
    assert message.WhichOneof("request") == kind
    assert h.read(getattr(message, kind).headers, {b":path", b"a"}) == {b":path": b"/x", b"a": b"b"}
    assert getattr(message, kind).end_of_stream


@pytest.mark.parametrize("kind", ["request_body", "response_body"])
def test_bodies_are_read(kind: str) -> None:
    message = ours(request(kind, envoy.HttpBody(body=b"xyz", end_of_stream=True)))
    assert (message.WhichOneof("request"), getattr(message, kind).body) == (kind, b"xyz")


@pytest.mark.parametrize("kind", ["request_trailers", "response_trailers"])
def test_trailers_are_read(kind: str) -> None:
    message = ours(request(kind, envoy.HttpTrailers(trailers=HEADERS)))
    assert message.WhichOneof("request") == kind


@pytest.mark.parametrize("mode", list(filters.ProcessingModeBodySendMode))
def test_body_modes_have_the_same_numbers(mode: filters.ProcessingModeBodySendMode) -> None:
    config = envoy.ProtocolConfiguration(request_body_mode=mode, response_body_mode=mode)
    message = ours(envoy.ProcessingRequest(protocol_config=config))
    assert pb.BodySendMode.Name(message.protocol_config.request_body_mode) == mode.name
    assert message.protocol_config.response_body_mode == mode.value


def test_a_routed_body_says_what_it_should_to_envoy() -> None:
    reply = theirs(replies.routed_body("1.2.3.4:5", [(b"content-length", b"3")], ["x-forged"], b"new"))
    common = reply.request_body.response
    assert [(o.header.key, o.header.raw_value) for o in common.header_mutation.set_headers] == [
        ("x-gateway-destination-endpoint", b"1.2.3.4:5"),
        ("content-length", b"3"),
    ]
    assert {o.append_action.name for o in common.header_mutation.set_headers} == {"OVERWRITE_IF_EXISTS_OR_ADD"}
    assert common.header_mutation.remove_headers == ["x-forged"]
    assert (common.body_mutation.body, common.clear_route_cache) == (b"new", True)
    assert "envoy.lb" in reply.dynamic_metadata.fields


@pytest.mark.parametrize("request_id", [b"short", b"0123456789abcdef", b"x" * 500])
def test_response_headers_say_what_they_should_whatever_the_length_of_the_id(request_id: bytes) -> None:
    for _ in range(2):  # the second is made from the first
        reply = theirs(replies.response_headers("m", "1.2.3.4:5", "cost", request_id, observe=True))
        sent = {o.header.key: o.header.raw_value for o in reply.response_headers.response.header_mutation.set_headers}
        assert sent == {
            "x-fairlead-model": b"m",
            "x-fairlead-endpoint": b"1.2.3.4:5",
            "x-fairlead-decision": b"cost",
            "x-request-id": request_id,
        }
        assert reply.mode_override.response_body_mode.name == "STREAMED"
        assert reply.mode_override.response_trailer_mode.name == "SEND"


def test_chunks_are_streamed_responses() -> None:
    reply = theirs(next(iter(replies.streamed_request_body(b"xyz", end_of_stream=True))))
    chunk = reply.request_body.response.body_mutation.streamed_response
    assert (chunk.body, chunk.end_of_stream) == (b"xyz", True)


def test_an_immediate_answer_has_status_headers_and_body() -> None:
    answer = theirs(replies.immediate(refusals.no_endpoint())).immediate_response
    assert (answer.status.code.value, b"no_endpoint" in answer.body) == (503, True)
    assert {o.header.key for o in answer.headers.set_headers} == {
        "content-type",
        "retry-after",
        "x-llm-d-request-dropped-reason",
    }
    assert answer.details == "fairlead_no_endpoint"
