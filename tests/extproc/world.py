"""A processor without gRPC: build Envoy's messages, feed them to a stream, and read what would go back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from fairlead.config import parse
from fairlead.core.budget import ObservationBudget
from fairlead.core.endpoint import Endpoint
from fairlead.core.policy import Policy
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.replies import Reply, whole
from fairlead.extproc.services import Services
from fairlead.extproc.stream import Stream
from fairlead.policies import build_policy
from fairlead.serving.build import build
from tests.core.world import make_endpoint

LIMIT_BYTES = 1 << 20
CONFIG = parse("pool: {endpoints: [{address: '10.0.0.1:1', model: small}]}\nsessions: {headers: [x-session-id]}\n")


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def chat(model: str = "small", **more: Any) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}], **more}).encode()


def make_services(policy: Policy | None = None, *, fallbacks: int = 2, messages_per_second: float = 0.0) -> Services:
    """Two endpoints of `small`, one of `large`, and a route `auto` to both."""
    endpoints = [
        make_endpoint("10.0.0.1:1", "small"),
        make_endpoint("10.0.0.2:1", "small"),
        make_endpoint("10.0.0.3:1", "large"),
    ]
    pool = Pool(endpoints, {"auto": ["small", "large"]})
    router = Router(pool, policy or build_policy("fairlead", {}), fallbacks=fallbacks, rng=Random(0))
    return services_around(router, budget=ObservationBudget(messages_per_second, 10 * messages_per_second))


def services_around(router: Router, clock_s: Callable[[], float] = lambda: 0.0, **parts: Any) -> Services:
    """What else the request path and the admin pages need, with every feature off; `parts` replace some."""
    services = replace(build(CONFIG, Path()), router=router, clock_s=clock_s, max_body_bytes=LIMIT_BYTES, reader=None)
    return replace(services, **parts)


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


def streamed_headers() -> pb.ProcessingRequest:
    """Of an answer that comes token by token."""
    headers = header_map({":status": "200", "content-type": "text/event-stream"})
    return pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=headers))


def response_body(body: bytes, *, end: bool = False) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=body, end_of_stream=end))


def response_trailers() -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_trailers=pb.HttpTrailers())


@dataclass
class Conversation:
    """One request's stream, and every reply so far."""

    services: Services = field(default_factory=make_services)
    replies: list[pb.ProcessingResponse] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = Stream(self.services)

    def say(self, *messages: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        """Replies to these messages."""
        new = [as_response(reply) for message in messages for reply in self.stream.on(message)]
        self.replies += new
        return new

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        return self.services.router.pool.by_address


def as_response(reply: Reply) -> pb.ProcessingResponse:
    return pb.ProcessingResponse.FromString(whole(reply))


async def later(conversation: Conversation) -> list[pb.ProcessingResponse]:
    """The replies that come later."""
    held, conversation.stream.held = conversation.stream.held, None
    assert held is not None
    return [as_response(reply) for reply in await asyncio.wait_for(held, 60)]


def at_rest(services: Services) -> bool:
    """Whether no endpoint has anything left of a request."""
    return all(e.own.inflight_requests == e.own.pending_prefill_tokens == 0 for e in services.router.pool.endpoints)


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


def streamed(replies: Sequence[pb.ProcessingResponse]) -> bytes:
    return b"".join(
        reply.request_body.response.body_mutation.streamed_response.body
        for reply in replies
        if reply.WhichOneof("response") == "request_body"
    )
