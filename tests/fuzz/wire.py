"""The attacker's side of gRPC over HTTP/2, as bytes: legal conversations, and how they are spoiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from fairlead.edge.http2 import frames as f
from fairlead.edge.http2 import header_block
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.server import PROCESS
from tests.edge.peer import data, headers, message, setting

GREETING = f.PREFACE + f.frame(f.SETTINGS, 0, 0) + f.window_update(0, 1 << 24)
ACK = f.frame(f.SETTINGS, f.ACK, 0)
PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/embeddings", "/v1/rerank", "/tokenize",
    "/v1/audio/transcriptions", "/generate", "/v1/chat/completions/", "/inference/v1/generate", "/v1/models",
    "/v1/realtime?model=small", "/", "", "*", "/%00", "/v1/" + "x" * 5000,
)  # fmt: skip
MODES = (pb.BUFFERED, pb.FULL_DUPLEX_STREAMED, pb.NONE, pb.STREAMED, pb.BUFFERED_PARTIAL, pb.GRPC)
STATUSES = ("200", "200", "200", "404", "429", "500", "503", "0", "-1", "99", "1000", "9" * 5000, "2e2", "٢٠٠", "")
SERVED = ("", "127.0.0.1:1", "x" * 3000, "10.0.0.1:80,10.0.0.2:80")


def opening(
    stream_id: int, path: str = PROCESS, *, ends: bool = False, more: Sequence[tuple[bytes, bytes]] = ()
) -> bytes:
    fields = (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"fuzz"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more,
    )  # fmt: skip
    return headers(stream_id, header_block(fields), ends=ends)


def in_frames(stream_id: int, payload: bytes, longest: int = f.MAX_FRAME_BYTES) -> bytes:
    return b"".join(data(stream_id, payload[at : at + longest]) for at in range(0, len(payload), longest))


# ---- messages -------------------------------------------------------------------------------------------------------


def header_map(fields: Mapping[str, str]) -> pb.HeaderMap:
    return pb.HeaderMap(headers=[pb.HeaderValue(key=k.encode(), raw_value=v.encode()) for k, v in fields.items()])


def request_headers(
    random: Random, *, path: str = PATHS[0], mode: int | None = None, end: bool = False
) -> pb.ProcessingRequest:
    fields = {":method": "POST", ":path": path, "content-type": "application/json"}
    if random.random() < 0.5:
        fields["x-session-id"] = f"fuzz-{random.getrandbits(40)}"
    if random.random() < 0.5:
        fields["x-request-id"] = "r" * random.choice((1, 16, 4000))
    if random.random() < 0.2:
        fields["x-fairlead-attempted-models"] = ",".join(
            f"m{random.getrandbits(30)}" for _ in range(random.choice((1, 500)))
        )
    if random.random() < 0.2:
        fields[f"x-{random.getrandbits(40)}"] = "v" * random.choice((1, 8000))
    if random.random() < 0.1:
        fields[":method"] = random.choice(("GET", "DELETE", "", "post", "CONNECT"))
    request = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=header_map(fields), end_of_stream=end))
    if random.random() < 0.9:
        response_mode = random.choice((pb.NONE, pb.NONE, pb.NONE, pb.FULL_DUPLEX_STREAMED))
        request.protocol_config.request_body_mode = random.choice(MODES[:2]) if mode is None else mode  # type: ignore[assignment]
        request.protocol_config.response_body_mode = response_mode
    return request


def response_headers(random: Random) -> pb.ProcessingRequest:
    code = str(random.randrange(1000, 10**6)) if random.random() < 0.2 else random.choice(STATUSES)
    fields = {":status": code, "content-type": random.choice(("application/json", "text/event-stream", "x" * 2000))}
    ends = random.random() < 0.2
    request = pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=header_map(fields), end_of_stream=ends))
    if random.random() < 0.5:
        served = random.choice((*SERVED, f"10.1.{random.randrange(256)}.{random.randrange(256)}:80"))
        request.metadata_context.filter_metadata["envoy.lb"]["x-gateway-destination-endpoint-served"] = served
    return request


def conversation(random: Random, body: bytes) -> list[pb.ProcessingRequest]:
    """A request and its answer in an order that Envoy might send."""
    duplex = random.random() < 0.4
    path = PATHS[0] if random.random() < 0.6 else random.choice(PATHS)
    mode = random.choice(MODES) if random.random() < 0.1 else MODES[duplex]
    said = [request_headers(random, path=path, mode=mode, end=random.random() < 0.1)]
    parts = [body]
    if duplex:
        cuts = sorted(random.randrange(len(body) + 1) for _ in range(random.randrange(4)))
        parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    trailers = random.random() < 0.2
    for number, part in enumerate(parts):
        end = number == len(parts) - 1 and not trailers
        said.append(pb.ProcessingRequest(request_body=pb.HttpBody(body=part, end_of_stream=end)))
    if trailers:
        said.append(pb.ProcessingRequest(request_trailers=pb.HttpTrailers()))
    said.append(response_headers(random))
    answer = random.choice(ANSWERS)
    said += [
        pb.ProcessingRequest(response_body=pb.HttpBody(body=answer, end_of_stream=random.random() < 0.5))
        for _ in range(random.randrange(3))
    ]
    if random.random() < 0.5:
        said.append(pb.ProcessingRequest(response_trailers=pb.HttpTrailers()))
    return said


ANSWERS = (
    b'{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9}}',
    b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', b'data: {"usage":{"prompt_tokens":-1}}\n\ndata: [DONE]\n\n',
    b'{"usage":{"prompt_tokens":1e999,"completion_tokens":"x"}}', b'{"usage":' + b"[" * 2000, b"\x00\xff" * 500, b"",
    b"data: " + b"x" * 70_000, b'{"usage":{"prompt_tokens":99999999999999999999999,"completion_tokens":5}}',
)  # fmt: skip


def out_of_order(random: Random, said: list[pb.ProcessingRequest]) -> list[pb.ProcessingRequest]:
    """Messages dropped, repeated, swapped and put where none belongs; some with a hint of endpoints."""
    said = list(said)
    for _ in range(random.randrange(1, 5)):
        at = random.randrange(len(said)) if said else 0
        what = random.randrange(5)
        if what == 0 and said:
            del said[at]
        elif what == 1 and said:
            said.insert(random.randrange(len(said) + 1), said[at])
        elif what == 2:
            random.shuffle(said)
        elif what == 3:
            stray = (response_headers(random), request_headers(random, end=True), pb.ProcessingRequest())
            said.insert(at, random.choice(stray))
        elif said:
            hint = pb.ProcessingRequest.FromString(said[at].SerializeToString())
            fields = hint.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            hints: tuple[Any, ...] = ("", "127.0.0.1:1", "x" * 2000, 7, ["a", 1])
            fields["x-gateway-destination-endpoint-subset"] = random.choice(hints)
            said[at] = hint
    return said


# ---- bytes ----------------------------------------------------------------------------------------------------------


def mutated(random: Random, data: bytes) -> bytes:
    """Bits flipped, ends cut, pieces repeated."""
    if not data:
        return random.randbytes(random.randrange(40))
    spoiled = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(spoiled)) if spoiled else 0
        what = random.randrange(4)
        if what == 0 and spoiled:
            spoiled[at] = random.randrange(256)
        elif what == 1:
            del spoiled[at : at + random.choice((1, 4, 100))]
        elif what == 2:
            spoiled[at:at] = random.randbytes(random.choice((1, 4, 100)))
        else:
            spoiled[at:at] = spoiled[at : at + random.choice((1, 10, 1000))]
    return bytes(spoiled)


def prefixed(random: Random, payload: bytes) -> bytes:
    """With gRPC's prefix, at times a lying one."""
    lie = random.random()
    if lie < 0.05:
        return b"\x01" + message(payload)[1:]
    if lie < 0.1:
        return b"\x00" + random.choice((0, 1, len(payload) + 7, 1 << 25, (1 << 32) - 1)).to_bytes(4, "big") + payload
    return message(payload)


def any_frame(random: Random, highest: int) -> bytes:
    """Of any type on any stream, legal by chance."""
    stream_id = random.choice((0, 1, highest, highest + 2, random.randrange(1, highest + 3), random.getrandbits(31)))
    what = random.randrange(9)
    if what == 0:
        return f.frame(random.randrange(12), random.randrange(256), stream_id, random.randbytes(random.randrange(40)))
    if what == 1:
        return f.rst_stream(stream_id, random.choice(list(f.ErrorCode)))
    if what == 2:
        return f.window_update(stream_id, random.choice((0, 1, 65_535, f.MAX_WINDOW)))
    if what == 3:
        return setting(random.randrange(9), random.choice((0, 1, 3, 4096, 16_384, 65_535, 1 << 24, (1 << 32) - 1)))
    if what == 4:
        return f.frame(f.PING, random.randrange(2), 0, random.randbytes(random.choice((8, 8, 8, 7)))) * random.choice(
            (1, 50)
        )
    if what == 5:
        flags = random.choice((0, f.END_STREAM, f.PADDED))
        return data(stream_id, random.randbytes(random.choice((0, 1, 5, 3000))), flags=flags) * random.choice(
            (1, 1, 200)
        )
    if what == 6:
        block = mutated(random, opening(1)[9:])
        return headers(stream_id | 1, block, flags=random.choice((f.END_HEADERS, 0, f.END_HEADERS | f.END_STREAM)))
    if what == 7:
        return f.frame(f.CONTINUATION, random.choice((0, f.END_HEADERS)), stream_id, b"x") * random.choice((1, 40))
    return f.frame(f.GOAWAY, 0, 0, random.randbytes(random.choice((8, 30, 3))))
