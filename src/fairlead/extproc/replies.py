"""Replies to Envoy as bytes on the wire. Constant parts are serialised once, at import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from fairlead.api import headers as names
from fairlead.api.refusals import HttpAnswer
from fairlead.edge.grpc.reading import Part
from fairlead.extproc.body import Body, pieces_of
from fairlead.extproc.body import whole as whole_body
from fairlead.extproc.pb.ext_proc_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingMode,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)

METADATA_NAMESPACE: Final = "envoy.lb"
CHUNK_BYTES: Final = 62_000  # Envoy refuses a streamed chunk of 64 KiB or more
_COPIED_BYTES: Final = 1 << 16
_JOINED_BYTES: Final = 4096  # of a chunk: to send it apart from its head would cost more than the copy
_CACHED_REPLIES: Final = 4096  # of each kind, some 300 bytes each
_SHORTEST_HOLE, _LONGEST_HOLE = 8, 64  # request ids that a reply is made for in advance; a UUID has 36 characters
_OVERWRITE: Final = HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD

REQUEST_HEADERS: Final = ProcessingResponse(request_headers=HeadersResponse()).SerializeToString()


def _shown(
    request_body: str = "NONE", response_body: str = "NONE", *, request_trailers: bool = False
) -> ProcessingMode:
    """What Envoy shows from now on. An answer's headers are shown from here and not before: Envoy's own protocol
    errors must not wait for us."""
    return ProcessingMode(
        request_header_mode="SEND",
        response_header_mode="SEND",
        request_body_mode=request_body,
        response_body_mode=response_body,
        request_trailer_mode="SEND" if request_trailers else "SKIP",
        response_trailer_mode="SEND",
    )


SKIP_BODY: Final = _shown()  # it need not come here
BY_CHUNKS: Final = _shown("FULL_DUPLEX_STREAMED", request_trailers=True)  # as it is already, and the answer's headers
BY_CHUNKS_BOTH_WAYS: Final = _shown("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", request_trailers=True)
_SHOW_RESPONSE_BODY: Final = _shown(response_body="STREAMED")  # BUFFERED would fail a body beyond Envoy's buffer
_HOLD_RESPONSE_BODY: Final = _shown(response_body="BUFFERED")
REQUEST_HEADERS_OF_A_BODY: Final = ProcessingResponse(
    request_headers=HeadersResponse(), mode_override=_shown("BUFFERED")
).SerializeToString()
REQUEST_BODY: Final = ProcessingResponse(request_body=BodyResponse()).SerializeToString()
REQUEST_TRAILERS: Final = ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString()
RESPONSE_HEADERS: Final = ProcessingResponse(response_headers=HeadersResponse()).SerializeToString()
RESPONSE_BODY: Final = ProcessingResponse(response_body=BodyResponse()).SerializeToString()
RESPONSE_TRAILERS: Final = ProcessingResponse(response_trailers=TrailersResponse()).SerializeToString()
NO_RESPONSE_BODY: Final = ProcessingResponse(
    response_body=BodyResponse(response=CommonResponse(body_mutation=BodyMutation(clear_body=True)))
).SerializeToString()

_AROUND_A_CHUNK: Final = (
    BodyMutation.STREAMED_RESPONSE_FIELD_NUMBER,
    CommonResponse.BODY_MUTATION_FIELD_NUMBER,
    BodyResponse.RESPONSE_FIELD_NUMBER,
)

Header = tuple[bytes, bytes]


class LongReply(NamedTuple):
    """One message in parts, so that a long body is not copied to be behind its head."""

    head: bytes
    body: tuple[Part, ...]


Reply = bytes | LongReply


def whole(reply: Reply) -> bytes:
    """A message in one part, for those who can send no other."""
    return reply if isinstance(reply, bytes) else b"".join((reply.head, *reply.body))


def _mutation(headers: Iterable[Header], remove: Iterable[str] = ()) -> HeaderMutation:
    return HeaderMutation(
        set_headers=[
            HeaderValueOption(header=HeaderValue(key=key, raw_value=value), append_action=_OVERWRITE)
            for key, value in headers
        ],
        remove_headers=remove,
    )


def _with_destination(reply: ProcessingResponse, destination: str) -> bytes:
    reply.dynamic_metadata.get_or_create_struct(METADATA_NAMESPACE)[names.DESTINATION.decode()] = destination
    return reply.SerializeToString()


def routed_headers(
    destination: str, headers: Iterable[Header], remove: Iterable[str], override: ProcessingMode
) -> bytes:
    """Answer to request headers that sends the request to `destination`; `override`: what Envoy shows from now on."""
    mutation = _mutation(((names.DESTINATION, destination.encode()), *headers), remove)
    common = CommonResponse(header_mutation=mutation, clear_route_cache=True)
    reply = ProcessingResponse(request_headers=HeadersResponse(response=common), mode_override=override)
    return _with_destination(reply, destination)


def routed_body(destination: str, headers: Iterable[Header], remove: Iterable[str], body: Body | None) -> Reply:
    """Answer to a buffered request body that sends the request to `destination`; `body` only where it changed."""
    if not headers and not remove and body is None:
        return _routed_body_as_it_is(destination)
    return _routed_body(destination, headers, remove, body)


def _routed_body(destination: str, headers: Iterable[Header], remove: Iterable[str], body: Body | None) -> Reply:
    mutation = _mutation(((names.DESTINATION, destination.encode()), *headers), remove)
    common = CommonResponse(header_mutation=mutation, clear_route_cache=True)
    if body is None or len(body) <= _COPIED_BYTES:
        if body is not None:
            common.body_mutation.body = whole_body(body)
        return _with_destination(ProcessingResponse(request_body=BodyResponse(response=common)), destination)
    # A message is the sum of its parts: written by hand, a long body is not copied, let alone four times.
    field = _field(BodyMutation.BODY_FIELD_NUMBER, len(body))
    for number in (CommonResponse.BODY_MUTATION_FIELD_NUMBER, BodyResponse.RESPONSE_FIELD_NUMBER):
        head = common.SerializeToString() if number == BodyResponse.RESPONSE_FIELD_NUMBER else b""
        field = _field(number, len(head) + len(field) + len(body)) + head + field
    field = _field(ProcessingResponse.REQUEST_BODY_FIELD_NUMBER, len(field) + len(body)) + field
    return LongReply(_with_destination(ProcessingResponse(), destination) + field, pieces_of(body))


def _field(number: int, length: int) -> bytes:
    """The head of a protobuf field whose value is so many bytes."""
    head = bytearray()
    for value in (number << 3 | 2, length):
        while value > 0x7F:
            head.append(value & 0x7F | 0x80)
            value >>= 7
        head.append(value)
    return bytes(head)


@lru_cache(maxsize=_CACHED_REPLIES)
def _routed_body_as_it_is(destination: str) -> Reply:
    return _routed_body(destination, (), (), None)


def response_headers(
    model: str, endpoint: str, why: str, request_id: bytes, *, observe: bool = False, reuse: bytes = b""
) -> bytes:
    """Answer to response headers that tells the client what answered and why, and returns its request id.

    `observe` asks Envoy to show the body too, part by part; `reuse` is what context reuse saved. Without `endpoint` the
    client does not learn it.
    """
    if reuse or not _SHORTEST_HOLE <= len(request_id) <= _LONGEST_HOLE:
        return _response_headers(model, endpoint, why, request_id, observe, reuse)
    head, tail = _response_template(model, endpoint, why, len(request_id), observe)
    return b"".join((head, request_id, tail))


@lru_cache(maxsize=_CACHED_REPLIES)
def _response_template(model: str, endpoint: str, why: str, id_bytes: int, observe: bool) -> tuple[bytes, bytes]:
    """The serialised reply before and after a request id of this length: to fill it in is cheaper than to build it."""
    hole = b"\x00" * id_bytes
    head, _, tail = _response_headers(model, endpoint, why, hole, observe).partition(hole)
    return head, tail


def _response_headers(
    model: str, endpoint: str, why: str, request_id: bytes, observe: bool, reuse: bytes = b""
) -> bytes:
    headers = [
        (names.MODEL, model.encode()),
        *([(names.ENDPOINT, endpoint.encode())] if endpoint else []),
        (names.DECISION, why.encode()),
        (names.REQUEST_ID, request_id),
    ]
    if reuse:
        headers.append((names.CONTEXT_REUSE, reuse))
    common = CommonResponse(header_mutation=_mutation(headers))
    reply = ProcessingResponse(response_headers=HeadersResponse(response=common))
    if observe:
        reply.mode_override.CopyFrom(_SHOW_RESPONSE_BODY)
    return reply.SerializeToString()


def with_served_endpoint(reply: bytes, address: str) -> bytes:
    """`reply` to response headers, which also says what served it: GIE's conformance suite reads it there."""
    return with_headers(reply, [(names.TEST_SERVED, address.encode())])


def with_headers(reply: bytes, headers: Iterable[Header]) -> bytes:
    """`reply` to response headers, which also sets these."""
    made = ProcessingResponse.FromString(reply)
    made.response_headers.response.header_mutation.MergeFrom(_mutation(headers))
    return made.SerializeToString()


def without_header(reply: bytes, name: str) -> bytes:
    """`reply` to response headers, which also removes this one."""
    made = ProcessingResponse.FromString(reply)
    made.response_headers.response.header_mutation.remove_headers.append(name)
    return made.SerializeToString()


def changed_response_body(body: bytes) -> bytes:
    """`body` instead of the part of the answer that was shown; nothing, if it is empty."""
    mutation = BodyMutation(body=body) if body else BodyMutation(clear_body=True)
    return ProcessingResponse(
        response_body=BodyResponse(response=CommonResponse(body_mutation=mutation))
    ).SerializeToString()


def refused_stream(status: int, body: bytes) -> tuple[bytes, bytes]:
    """To the headers of a stream and to its first part: the status that it should have had, and its error as JSON."""
    headers = ((b":status", str(status).encode()), (b"content-type", b"application/json"))
    common = CommonResponse(header_mutation=_mutation(headers))
    return (
        ProcessingResponse(response_headers=HeadersResponse(response=common)).SerializeToString(),
        changed_response_body(body),
    )


def held_response_headers(model: str, endpoint: str, why: str, request_id: bytes, reuse: bytes) -> bytes:
    """As `response_headers`, and Envoy shows the whole body in one message before the client gets any of it."""
    reply = ProcessingResponse.FromString(_response_headers(model, endpoint, why, request_id, False, reuse))
    reply.mode_override.CopyFrom(_HOLD_RESPONSE_BODY)
    return reply.SerializeToString()


def wait(timeout_s: float) -> bytes:
    """The answer to the present message will take up to `timeout_s`."""
    reply = ProcessingResponse()
    reply.override_message_timeout.FromTimedelta(timedelta(seconds=timeout_s))
    return reply.SerializeToString()


def settled_body(headers: Iterable[Header], body: bytes | None) -> bytes:
    """Answer to a held response body: `body` instead of it, unless None, and these headers of the response."""
    length = [] if body is None else [(b"content-length", str(len(body)).encode())]
    common = CommonResponse(header_mutation=_mutation((*headers, *length)))
    if body is not None:
        common.body_mutation.body = body
    return ProcessingResponse(response_body=BodyResponse(response=common)).SerializeToString()


def streamed_request_body(body: Body, *, end_of_stream: bool) -> Iterator[Reply]:
    """The body in chunks that Envoy takes; `end_of_stream`, if it is set, is on the last only."""
    return _chunks(ProcessingResponse.REQUEST_BODY_FIELD_NUMBER, body, end_of_stream)


def streamed_response_body(body: bytes, *, end_of_stream: bool) -> Iterator[Reply]:
    return _chunks(ProcessingResponse.RESPONSE_BODY_FIELD_NUMBER, body, end_of_stream)


def _chunks(outermost: int, body: Body, end_of_stream: bool) -> Iterator[Reply]:
    pieces = pieces_of(body) or (b"",)
    for number, piece in enumerate(pieces, 1):
        for start in range(0, len(piece) or 1, CHUNK_BYTES):
            is_last = number == len(pieces) and start + CHUNK_BYTES >= len(piece)
            part = piece if len(piece) <= CHUNK_BYTES else memoryview(piece)[start : start + CHUNK_BYTES]
            yield _chunk(outermost, part, end_of_stream and is_last)


def _chunk(outermost: int, part: Part, is_end: bool) -> Reply:
    """Written by hand: the library would copy the part four times, and a long body has hundreds."""
    head = _chunk_head(outermost, len(part), is_end)
    return head + part if len(part) <= _JOINED_BYTES else LongReply(head, (part,))


@lru_cache(maxsize=_CACHED_REPLIES)
def _chunk_head(outermost: int, length: int, is_end: bool) -> bytes:
    """What comes before the bytes of a streamed chunk, as these are the last field of a message."""
    made = _field(StreamedBodyResponse.BODY_FIELD_NUMBER, length)
    if is_end:
        made = StreamedBodyResponse(end_of_stream=True).SerializeToString() + made
    for number in (*_AROUND_A_CHUNK, outermost):
        made = _field(number, len(made) + length) + made
    return made


def immediate(answer: HttpAnswer, headers: Iterable[Header] = ()) -> bytes:
    """End the request here with `answer`."""
    own = [(b"content-type", b"application/json"), *headers, *answer.headers]
    if answer.retry_after_s is not None:
        own.append((b"retry-after", str(answer.retry_after_s).encode()))
    if answer.dropped:
        own.append((names.DROPPED_REASON, answer.dropped))
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=answer.status), headers=_mutation(own), body=answer.body, details=answer.details
        )
    ).SerializeToString()
