"""A streamed answer waits for its first event: a refusal gets its status, and anything else goes on at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.headers import FIRST_EVENT
from fairlead.core.reported import EngineIdentity
from fairlead.extproc.first_event import MOST_S, FirstEvent
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.routed import may_be_refused
from fairlead.extproc.server import SERVICE, ServerName, processor_server
from tests.extproc.world import (
    Conversation,
    as_response,
    chat,
    header_map,
    make_services,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    set_headers,
)

FULL = b'data: {"error": {"message": "full", "code": 503}}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


def stream_headers(status: int = 200, content_type: str = "text/event-stream; charset=utf-8") -> pb.ProcessingRequest:
    headers = header_map({":status": str(status), "content-type": content_type})
    return pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=headers))


def replies(first: FirstEvent, *messages: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
    return [as_response(reply) for message in messages for reply in first.on(message)]


def kinds(made: Iterable[pb.ProcessingResponse]) -> list[str | None]:
    return [reply.WhichOneof("response") for reply in made]


def test_headers_wait_for_the_first_part_and_then_the_answer_is_left_alone() -> None:
    first = FirstEvent(make_services(), b"10.0.0.1:1")
    (wait,) = replies(first, stream_headers())
    assert wait.override_message_timeout.seconds == MOST_S
    headers, body = replies(first, response_body(TOKEN))
    assert headers == pb.ProcessingResponse(response_headers=pb.HeadersResponse())
    assert body == pb.ProcessingResponse(response_body=pb.BodyResponse())
    assert first.is_over


def test_a_refusal_gets_its_status_and_its_error_and_what_follows_is_dropped() -> None:
    services = make_services()
    first = FirstEvent(services, b"10.0.0.1:1")
    _, headers, body, rest = replies(
        first, stream_headers(), response_body(FULL), response_body(b"data: [DONE]\n\n", end=True)
    )
    assert set_headers(headers)[":status"] == "503"
    assert set_headers(headers)["content-type"] == "application/json"
    assert msgspec.json.decode(body.response_body.response.body_mutation.body)["error"]["message"] == "full"
    assert rest.response_body.response.body_mutation.clear_body
    assert not first.is_over, "what is left of it is still to be dropped"
    assert services.recorder.refused_streams == 1
    full, other, _ = services.router.pool.endpoints
    assert full.refused_s > other.refused_s, "it is known to be full before another one answers"


@pytest.mark.parametrize(
    "message", [stream_headers(503), stream_headers(content_type="application/json"), response_headers(end=True)]
)
def test_what_is_no_stream_goes_on_at_once(message: pb.ProcessingRequest) -> None:
    first = FirstEvent(make_services(), b"10.0.0.1:1")
    assert kinds(replies(first, message)) == ["response_headers"]
    assert first.is_over


MESSAGES = st.sampled_from(
    [
        stream_headers(), stream_headers(503), response_body(TOKEN), response_body(FULL), response_body(b"", end=True),
        response_trailers(), request_headers(), request_body(chat()), request_trailers(), pb.ProcessingRequest(),
    ]
)  # fmt: skip


@given(st.lists(MESSAGES, max_size=8))
def test_in_whatever_order_messages_come_headers_are_answered_once_and_nothing_raises(
    messages: list[pb.ProcessingRequest],
) -> None:
    first = FirstEvent(make_services(), b"10.0.0.1:1")
    made: list[pb.ProcessingResponse] = []
    for message in messages:
        if first.is_over:
            break
        made += replies(first, message)
    assert kinds(made).count("response_headers") <= 1


@pytest.mark.parametrize("edge", ["native", "grpcio"])
@pytest.mark.parametrize(("part", "ends"), [(TOKEN, True), (FULL, False)], ids=["an answer", "a refusal"])
async def test_the_call_ends_with_the_first_part_of_an_answer(edge: ServerName, part: bytes, ends: bool) -> None:
    services = make_services()
    server = processor_server(services, "127.0.0.1:0", edge)
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        call = method(metadata=((FIRST_EVENT.decode(), "10.0.0.1:1"),))
        await call.write(stream_headers())
        await call.write(response_body(part))
        wait = await call.read()
        made = [await call.read(), await call.read()]
        if not ends:
            await call.write(response_body(b"data: [DONE]\n\n", end=True))
            made.append(await call.read())
            await call.done_writing()
        assert await call.read() == grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
    await server.drain(0)
    assert wait.override_message_timeout.seconds == MOST_S
    assert kinds(made) == ["response_headers", *["response_body"] * (1 if ends else 2)]
    assert services.recorder.running_streams == 0


STREAMED = chat(stream=True)


@pytest.mark.parametrize(
    ("body", "most", "is_marked"),
    [
        (STREAMED, 8, True), (chat(), 8, False), (STREAMED, None, False),
    ],
    ids=["a stream", "an answer in one piece", "no limit"],
)  # fmt: skip
def test_only_streams_of_engines_whose_queue_is_limited_are_held(
    body: bytes, most: int | None, is_marked: bool
) -> None:
    services = make_services()
    for endpoint in services.router.pool.endpoints:
        endpoint.identified(EngineIdentity(max_queued_requests=most))
    _, picked = Conversation(services).say(request_headers(), request_body(body))
    assert (FIRST_EVENT.decode() in set_headers(picked)) is is_marked


def test_an_endpoint_that_left_the_pool_while_the_request_waited_holds_nothing_up() -> None:
    services = make_services()
    talk = Conversation(services)
    talk.say(request_headers(), request_body(STREAMED))
    assert talk.stream.in_flight is not None
    services.router.pool.by_address.clear()
    assert not may_be_refused(talk.stream, talk.stream.in_flight)
