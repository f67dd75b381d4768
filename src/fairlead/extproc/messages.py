"""Envoy's messages out of their bytes, which come in parts.

protobuf's parser copies a body into memory of its own, and out of it again. A long request body, and nothing else in
its message, is therefore found here by hand and copied once; whatever looks otherwise is left to protobuf.
"""

from __future__ import annotations

from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from fairlead.edge.grpc import Status, StatusError
from fairlead.edge.grpc.reading import Part, Parts
from fairlead.extproc.pb.ext_proc_pb2 import HttpBody, ProcessingRequest


class RequestBody(msgspec.Struct, frozen=True, gc=False):
    """A ProcessingRequest that holds a request body and nothing else."""

    body: bytes
    end_of_stream: bool

    def as_request(self) -> ProcessingRequest:
        return ProcessingRequest(request_body=HttpBody(body=self.body, end_of_stream=self.end_of_stream))


Message = ProcessingRequest | RequestBody

_parse: Final = ProcessingRequest.FromString

_LEAST_BYTES: Final = 8 * 1024  # of a message, below which protobuf is as fast
_HEAD_BYTES: Final = 12  # two keys of one byte, two lengths of up to five
_DELIMITED: Final = 2  # the wire type of messages and of bytes
_REQUEST_BODY: Final = ProcessingRequest.REQUEST_BODY_FIELD_NUMBER << 3 | _DELIMITED
_BODY: Final = HttpBody.BODY_FIELD_NUMBER << 3 | _DELIMITED
_ENDED: Final = bytes((HttpBody.END_OF_STREAM_FIELD_NUMBER << 3, 1))


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
        raise StatusError(Status.INTERNAL, "the message is no ProcessingRequest") from None


def _request_body(parts: Parts) -> RequestBody | None:
    first, last, message_bytes = parts[0], parts[-1], sum(map(len, parts))
    if min(len(first), len(last)) < _HEAD_BYTES or first[0] != _REQUEST_BODY:
        return None
    length, at = _number(first, 1)
    if at + length != message_bytes or first[at] != _BODY:
        return None
    length, start = _number(first, at + 1)
    end = start + length
    if end + len(_ENDED) == message_bytes and last[-len(_ENDED) :] == _ENDED:
        ended = True
    elif end == message_bytes:
        ended = False
    else:
        return None
    whole: list[Part] = [memoryview(part) for part in parts]
    whole[-1] = whole[-1][: len(last) - (message_bytes - end)]
    whole[0] = whole[0][start:]
    return RequestBody(b"".join(whole), ended)


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
