"""The engines behind the gateways: constant answers to all that the gateways ask of a vLLM.

Each has an address of the loopback network to itself (127.0.1.1, 127.0.1.2, ...) and all have the same port, as pods
do. `python -m fairlead.tools.bench.rivals.engines 4` prints the addresses as a JSON line and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import Final, cast

import httptools
import xxhash

from fairlead.tools.bench.decision import MODEL
from fairlead.tools.bench.tables.vllm_page import page

_COMPLETION: Final = json.dumps(
    {
        "id": "bench",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9},
    }
).encode()
_MODELS: Final = json.dumps(
    {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 131072}]}
).encode()
_RENDER: Final = b"/v1/chat/completions/render"  # vLLM's tokens of a prompt, which vllm-router asks for
_BYTES_PER_TOKEN: Final = 4
_PORT_ATTEMPTS: Final = 20


def answers() -> dict[bytes, bytes]:
    """The body of the answer to each path; another path is answered 404."""
    idle = re.sub(rb"^(vllm:(?:num_requests_\w+|kv_cache_usage_perc)\{[^}]*\}) \S+$", rb"\1 0.0", page(0), flags=re.M)
    return {
        b"/v1/chat/completions": _COMPLETION,
        b"/v1/models": _MODELS,
        b"/health": b"",
        b"/version": b'{"version":"0.11.0"}',
        b"/metrics": idle,
    }


class Engine(asyncio.Protocol):
    """One connection of a gateway, whose requests may be framed by length or in chunks."""

    def __init__(self, bodies: dict[bytes, bytes]) -> None:
        self._bodies = bodies
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._rendered: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own does not derive from it
        self._name = "{}:{}".format(*transport.get_extra_info("sockname")).encode()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # HTTP/2, which some gateways try
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._path = url.partition(b"?")[0]

    def on_body(self, body: bytes) -> None:
        if self._path == _RENDER:
            self._rendered.append(body)

    def on_message_complete(self) -> None:
        if self._path == _RENDER:
            body = b"".join(self._rendered)
            self._rendered.clear()
            self._answer(b"200 OK", _tokens(xxhash.xxh64_intdigest(body), len(body) // _BYTES_PER_TOKEN))
        elif (known := self._bodies.get(self._path)) is not None:
            self._answer(b"200 OK", known)
        else:
            self._answer(b"404 Not Found", b"")

    def _answer(self, status: bytes, body: bytes) -> None:
        kind = b"text/plain" if self._path == b"/metrics" else b"application/json"
        head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\nx-upstream: %b\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, kind, self._name, len(body)) + body)


@lru_cache(maxsize=256)
def _tokens(seed: int, count: int) -> bytes:
    """As vLLM renders a prompt; other prompts have other tokens."""
    ids = [(seed + 7919 * place) % 50_000 for place in range(count)]
    return json.dumps({"request_id": "bench", "model": MODEL, "token_ids": ids, "sampling_params": {}}).encode()


async def serve(count: int) -> None:
    """Listen on `count` addresses, say which, and serve until cancelled."""
    loop = asyncio.get_running_loop()
    bodies = answers()
    hosts = [f"127.0.1.{number}" for number in range(1, count + 1)]
    for _ in range(_PORT_ATTEMPTS):
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(await loop.create_server(lambda: Engine(bodies), hosts[0], 0))
            port = first.sockets[0].getsockname()[1]
            with contextlib.suppress(OSError):  # somebody has this port on another of the addresses
                for host in hosts[1:]:
                    await stack.enter_async_context(await loop.create_server(lambda: Engine(bodies), host, port))
                print(json.dumps([f"{host}:{port}" for host in hosts]), flush=True)
                await asyncio.Event().wait()
    raise SystemExit(f"no port is free on all of {hosts[0]} to {hosts[-1]}")


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1])))
