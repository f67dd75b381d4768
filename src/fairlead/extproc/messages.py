"""Envoy's messages out of their bytes, which come in parts.

protobuf's parser copies a body into memory of its own, and out of it again. A long request body at the start of its
message, where Envoy writes it, is therefore found here by hand, and stays in its parts. Envoy says in each message that
there is no metadata, or which: that is read as an extra message. Whatever looks otherwise is left to protobuf.
"""

from __future__ import annotations

from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from fairlead.edge.grpc import Status, StatusError
from fairlead.edge.grpc.reading import Part, Parts
from fairlead.extproc.pb.ext_proc_pb2 import HttpBody, ProcessingRequest


class RequestBody(msgspec.Struct, frozen=True, gc=False):
    """A ProcessingRequest that holds a request body."""

    pieces: tuple[Part, ...]
    end_of_stream: bool
    extra: ProcessingRequest | None = None  # whatever else the message has, such as metadata

    def as_request(self) -> ProcessingRequest:
        made = ProcessingRequest() if self.extra is None else _copy_of(self.extra)
        made.request_body.CopyFrom(HttpBody(body=b"".join(self.pieces), end_of_stream=self.end_of_stream))
        return made


Message = ProcessingRequest | RequestBody

_parse: Final = ProcessingRequest.FromString

_LEAST_BYTES: Final = 8 * 1024  # of a message, below which protobuf is as fast
_HEAD_BYTES: Final = 12  # two keys of one byte, two lengths of up to five
_DELIMITED: Final = 2  # the wire type of messages and of bytes
_REQUEST_BODY: Final = ProcessingRequest.REQUEST_BODY_FIELD_NUMBER << 3 | _DELIMITED
_BODY: Final = HttpBody.BODY_FIELD_NUMBER << 3 | _DELIMITED
_ENDED: Final = bytes((HttpBody.END_OF_STREAM_FIELD_NUMBER << 3, 1))
_NO_METADATA: Final = bytes((ProcessingRequest.METADATA_CONTEXT_FIELD_NUMBER << 3 | _DELIMITED, 0))  # as Envoy says it
_WITHOUT_METADATA: Final = _parse(_NO_METADATA)
_MOST_BESIDE_BYTES: Final = 1 << 16


def _copy_of(message: ProcessingRequest) -> ProcessingRequest:
    made = ProcessingRequest()
    made.CopyFrom(message)
    return made


def read(parts: Parts) -> Message:
    """Raises StatusError for bytes that are no ProcessingRequest."""
    whole = parts[0]
    if len(parts) > 1 or len(whole) >= _LEAST_BYTES:
        body = _request_body(parts)
        if body is not None:
            return body
        whole = b"".join(parts)
    try:
        return _parse(bytes(whole))
    except DecodeError:
        raise StatusError(Status.INTERNAL, "the message is not a ProcessingRequest") from None


def _request_body(parts: Parts) -> RequestBody | None:
    first, message_bytes = parts[0], sum(map(len, parts))
    if len(first) < _HEAD_BYTES or first[0] != _REQUEST_BODY:
        return None
    length, at = _number(first, 1)
    inner_end = at + length
    if inner_end > message_bytes or first[at] != _BODY:
        return None
    length, start = _number(first, at + 1)
    end = start + length
    flag_bytes = inner_end - end
    if flag_bytes not in (0, len(_ENDED)) or message_bytes - inner_end > _MOST_BESIDE_BYTES:
        return None
    pieces, after = _cut(parts, message_bytes - end)
    if flag_bytes and not after.startswith(_ENDED):
        return None
    extra = None
    if (rest := after[flag_bytes:]) == _NO_METADATA:
        extra = _WITHOUT_METADATA
    elif rest:
        try:
            extra = _parse(rest)
        except DecodeError:
            return None
        if extra.WhichOneof("request") is not None:
            return None
    pieces[0] = memoryview(pieces[0])[start:]
    return RequestBody(tuple(pieces), bool(flag_bytes), extra)


def _cut(parts: Parts, last_bytes: int) -> tuple[list[Part], bytes]:
    """All but so many bytes, in their parts, and those bytes."""
    kept, cut = list(parts), [b""]
    while last_bytes:
        part = kept.pop()
        taken = min(last_bytes, len(part))
        cut.append(bytes(part[len(part) - taken :]))
        last_bytes -= taken
        if taken < len(part):
            kept.append(memoryview(part)[: len(part) - taken])
    return kept, b"".join(reversed(cut))


def _number(data: Part, at: int) -> tuple[int, int]:
    """A number of at most five bytes, as protobuf writes lengths, and where it ends; a longer one is read as -1."""
    number = 0
    for shift in (0, 7, 14, 21, 28):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    return -1, at
