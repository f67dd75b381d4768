"""A processor without gRPC: build Envoy's messages, feed them to a stream, and read what would go back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fairlead.core.budget import MessageBudget
from fairlead.core.pool import Endpoint, Pool
from fairlead.core.ranking import Policy
from fairlead.core.router import Router
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.pick import Shared
from fairlead.extproc.stream import Stream
from fairlead.policies import build_policy
from fairlead.telemetry.recorder import Recorder

LIMIT_BYTES = 1 << 20


def chat(model: str = "small", **more: Any) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}], **more}).encode()


def make_shared(policy: Policy | None = None, *, fallbacks: int = 2, messages_per_second: float = 0.0) -> Shared:
    """Two endpoints of `small`, one of `large`, and a route `auto` to both."""
    endpoints = [Endpoint("10.0.0.1:1", "small"), Endpoint("10.0.0.2:1", "small"), Endpoint("10.0.0.3:1", "large")]
    pool = Pool(endpoints, {"auto": ["small", "large"]})
    router = Router(pool, policy or build_policy("fairlead", {}), fallbacks=fallbacks, rng=Random(0))
    budget = MessageBudget(messages_per_second)
    return Shared(router, Recorder(), (b"x-session-id",), LIMIT_BYTES, lambda: 0.0, budget=budget)


def request_headers(
    method: str = "POST",
    path: str = "/v1/chat/completions",
    *,
    mode: pb.BodySendMode = pb.BUFFERED,
    response_mode: pb.BodySendMode = pb.NONE,
    end: bool = False,
    extra: Mapping[str, str] | None = None,
    subset: Sequence[str] | str | None = None,
    raw: bool = True,
) -> pb.ProcessingRequest:
    headers = {":method": method, ":path": path, "x-request-id": "id-1"} | dict(extra or {})
    message = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=header_map(headers, raw=raw), end_of_stream=end),
        protocol_config=pb.ProtocolConfiguration(
            request_body_mode=mode,
            response_body_mode=response_mode,
        ),
    )
    if subset is not None:
        with_subset(message, subset)
    return message


def with_subset(message: pb.ProcessingRequest, subset: Sequence[str] | str) -> pb.ProcessingRequest:
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint["x-gateway-destination-endpoint-subset"] = subset if isinstance(subset, str) else list(subset)
    return message


def header_map(headers: Mapping[str, str], *, raw: bool = True) -> pb.HeaderMap:
    return pb.HeaderMap(
        headers=[
            pb.HeaderValue(key=k.encode(), raw_value=v.encode())
            if raw
            else pb.HeaderValue(key=k.encode(), value=v.encode())
            for k, v in headers.items()
        ]
    )


def request_body(body: bytes, *, end: bool = True) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=end))


def request_trailers() -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_trailers=pb.HttpTrailers())


def response_headers(status: int = 200, *, end: bool = False, served: str | None = None) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest(
        response_headers=pb.HttpHeaders(headers=header_map({":status": str(status)}), end_of_stream=end)
    )
    if served is not None:
        message.metadata_context.filter_metadata["envoy.lb"]["x-gateway-destination-endpoint-served"] = served
    return message


def response_body(body: bytes, *, end: bool = False) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=body, end_of_stream=end))


def response_trailers() -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_trailers=pb.HttpTrailers())


@dataclass
class Conversation:
    """One request's stream, and every reply so far."""

    shared: Shared = field(default_factory=make_shared)
    replies: list[pb.ProcessingResponse] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = Stream(self.shared)

    def say(self, *messages: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        """Replies to these messages."""
        new = [pb.ProcessingResponse.FromString(reply) for message in messages for reply in self.stream.on(message)]
        self.replies += new
        return new

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        return self.shared.router.pool.by_address


def kinds(replies: Sequence[pb.ProcessingResponse]) -> list[str]:
    """What each reply answers, with `+` for a streamed chunk and `.` for one that ends the stream."""
    return [_kind(reply) for reply in replies]


def _kind(reply: pb.ProcessingResponse) -> str:
    kind = reply.WhichOneof("response") or "nothing"
    if kind in ("request_body", "response_body"):
        mutation = getattr(reply, kind).response.body_mutation
        if mutation.WhichOneof("mutation") == "streamed_response":
            return kind + ("." if mutation.streamed_response.end_of_stream else "+")
    return kind


def set_headers(reply: pb.ProcessingResponse) -> dict[str, str]:
    kind = reply.WhichOneof("response")
    if kind == "immediate_response":
        mutation = reply.immediate_response.headers
    else:
        mutation = getattr(reply, kind or "").response.header_mutation
    return {option.header.key.decode(): option.header.raw_value.decode() for option in mutation.set_headers}


def destination(reply: pb.ProcessingResponse) -> str | None:
    """The endpoint list, if it stands both in the header and in the metadata."""
    header = set_headers(reply).get("x-gateway-destination-endpoint")
    metadata = (
        reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields["x-gateway-destination-endpoint"].string_value
    )
    return header if header == metadata else None


def streamed(replies: Sequence[pb.ProcessingResponse], kind: str = "request_body") -> bytes:
    return b"".join(
        getattr(reply, kind).response.body_mutation.streamed_response.body
        for reply in replies
        if reply.WhichOneof("response") == kind
    )
