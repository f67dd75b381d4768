"""The upstream of the benchmark: the least HTTP/1.1 server that frames correctly, on several ports at once.

It must not be what limits a run, so it knows one answer and looks at nothing but the length of what it is sent.
`python -m fairlead.tools.bench.upstream 8` listens on eight free ports, prints them as a JSON line and serves until
SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final, cast

_ANSWER: Final = (
    b'{"id":"bench","object":"chat.completion","created":0,"model":"bench-model","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9}}'
)
_LENGTH: Final = b"\r\ncontent-length: "


class Upstream(asyncio.Protocol):
    """One connection: each request with a content-length, or without a body, gets the one answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        host, port = transport.get_extra_info("sockname")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-upstream: {host}:{port}\r\n"
        self._answer = head.encode() + b"content-length: %d\r\n\r\n" % len(_ANSWER) + _ANSWER
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own does not derive from it
        self._head = b""
        self._body_left = 0

    def data_received(self, data: bytes) -> None:
        while data:
            if self._body_left == 0:
                data = self._head + data
                end = data.find(b"\r\n\r\n")
                if end < 0:
                    self._head = data
                    return
                self._head = b""
                self._body_left = _content_length(data[: end + 2])
                data = data[end + 4 :]
            taken = min(self._body_left, len(data))
            self._body_left -= taken
            data = data[taken:]
            if self._body_left == 0:
                self._transport.write(self._answer)


def _content_length(head: bytes) -> int:
    start = head.lower().find(_LENGTH)
    if start < 0:
        return 0
    start += len(_LENGTH)
    return int(head[start : head.index(b"\r\n", start)])


async def serve(ports: int) -> None:
    """Listen on `ports` free ports of the loopback address, say which, and serve until cancelled."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Upstream, "127.0.0.1", 0) for _ in range(ports)]
    addresses = ["{}:{}".format(*server.sockets[0].getsockname()) for server in servers]
    print(json.dumps(addresses), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1])))
