"""A real HTTP server that answers what the test wrote down, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False


@dataclass(frozen=True)
class Asked:
    path: str
    headers: dict[str, str]
    body: Any


class Script:
    """Replies in order; the last one is repeated."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self._replies: list[Reply] = []

    def answers(self, *texts_and_models: tuple[str, str], **headers: str) -> Script:
        for text, model in texts_and_models:
            body = json.dumps({"model": model, "choices": [{"message": {"role": "assistant", "content": text}}]})
            self._replies.append(Reply(body=body.encode(), headers=headers))
        return self

    def replies(self, *replies: Reply) -> Script:
        self._replies.extend(replies)
        return self

    def next(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        return self._replies[min(len(self.asked), len(self._replies)) - 1]

    def attempted(self) -> list[str | None]:
        return [asked.headers.get("x-fairlead-attempted-models") for asked in self.asked]


@pytest.fixture
def server() -> Iterator[Script]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = script.next(Asked(self.path, headers, json.loads(body)))
            if reply.hang_up:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        script = Script(f"http://127.0.0.1:{http.server_address[1]}")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield script
        http.shutdown()
        thread.join()
