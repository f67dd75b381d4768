"""The load generator: HTTP/1.1 over kept-alive connections, with as little between send and measure as asyncio allows.

Closed loop (`rate_per_s` 0): every connection sends its next request when it has its answer. Open loop: requests leave
at a fixed rate whether answers are there or not. An answer that is not a 200 of the announced length, or that another
upstream gave than the processor chose, is an error. `python -m fairlead.tools.bench.load '<Plan as JSON>'` prints a
`Result`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, cast

import msgspec

from fairlead.statistics import quantile
from fairlead.tools.bench.bodies import chat_body

_BODIES: Final = 16
_GRACE_S: Final = 5.0  # for answers that are due when the run ends
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
_CHOSEN: Final = re.compile(rb"\r\nx-fairlead-endpoint: ([^\r]+)\r\n")
_CHUNKED: Final = b"\r\ntransfer-encoding: chunked\r\n"
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"  # the upstream's answer holds no such bytes
_SERVED: Final = re.compile(rb"\r\nx-upstream: ([^\r]+)\r\n")


class Plan(msgspec.Struct, frozen=True):
    address: str
    model: str
    body_bytes: int
    seed: int
    connections: int
    warm_up_s: float
    measured_s: float
    rate_per_s: float  # 0: closed loop
    is_chosen: bool  # whether a processor must have chosen the upstream
    has_session: bool = True  # all requests of one session, named by a header


class Result(msgspec.Struct, frozen=True):
    requests: int  # warm-up included
    measured: int
    measured_s: float
    p50_us: float
    p99_us: float
    errors: int
    first_error: str
    cpu_s: float  # that the generator itself took


class Connection(asyncio.Protocol):
    """One connection with at most one request on it; tells `load` of each answer and of each error."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._received = b""
        self._waits = False
        self._sent_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own does not derive from it

    def send(self, request: bytes, due_s: float) -> None:
        self._waits = True
        self._sent_s = due_s
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return
        if (length := _LENGTH.search(received, 0, end + 2)) is not None:
            whole = end + 4 + int(length.group(1))
        elif received.find(_CHUNKED, 0, end + 2) >= 0:
            whole = len(received) + (not received.endswith(_LAST_CHUNK))
        else:
            whole = -1
        if len(received) < whole:
            return
        fault = self._load.fault(received, end, whole) if self._waits else "an answer that nobody asked for"
        self._received = b""
        self._waits = False
        if fault:
            self._transport.abort()
            self._load.failed(fault)
        else:
            self._load.answered(self, time.perf_counter() - self._sent_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waits:
            self._waits = False
            self._load.failed(f"connection lost before the answer ({exc or 'closed'})")


class Load:
    """One run of a plan; with `requests`, of those instead of the plan's own, over and over."""

    def __init__(self, plan: Plan, requests: Iterator[bytes] | None = None) -> None:
        self._plan = plan
        self._requests = requests or itertools.cycle(_requests(plan))
        self._idle: deque[Connection] = deque()
        self._due_s: deque[float] = deque()  # open loop: requests that found no idle connection
        self._running = 0
        self._latencies_s: list[float] = []
        self._answers = 0
        self._errors = 0
        self._first_error = ""
        self._measure_from_s = self._end_s = 0.0
        self._is_all_sent = plan.rate_per_s == 0  # closed loop: over as soon as no request is left
        self._finished = asyncio.Event()

    async def run(self) -> Result:
        loop, before_s = asyncio.get_running_loop(), time.process_time()
        host, _, port = self._plan.address.rpartition(":")
        connections = []
        for _ in range(self._plan.connections):
            _, connection = await loop.create_connection(lambda: Connection(self), host, int(port))
            connections.append(connection)
        self._measure_from_s = time.perf_counter() + self._plan.warm_up_s
        self._end_s = self._measure_from_s + self._plan.measured_s
        if self._plan.rate_per_s:
            self._idle.extend(connections)
            await self._send_at_fixed_rate()
        else:
            for connection in connections:
                self._send(connection, time.perf_counter())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._finished.wait(), max(0.0, self._end_s - time.perf_counter()) + _GRACE_S)
        if missing := self._running + len(self._due_s):
            self._errors += missing
            self._first_error = self._first_error or f"no answer within {_GRACE_S:g} s of the end"
        latencies_us = sorted(latency_s * 1e6 for latency_s in self._latencies_s)
        return Result(
            requests=self._answers,
            measured=len(latencies_us),
            measured_s=self._plan.measured_s,
            p50_us=quantile(latencies_us, 0.5) if latencies_us else 0.0,
            p99_us=quantile(latencies_us, 0.99) if latencies_us else 0.0,
            errors=self._errors,
            first_error=self._first_error,
            cpu_s=time.process_time() - before_s,
        )

    def fault(self, answer: bytes, head_end: int, whole: int) -> str:
        """What is wrong with an answer; empty if nothing."""
        if not answer.startswith(b"HTTP/1.1 200 "):
            return f"answered {answer[:200]!r}"
        if len(answer) != whole:
            return "the answer is not of the length it announces"
        if self._plan.is_chosen:
            chosen, served = _CHOSEN.search(answer, 0, head_end + 2), _SERVED.search(answer, 0, head_end + 2)
            if chosen is None:
                return "passed without the processor"
            if served is None or chosen.group(1) != served.group(1):
                return "served by another upstream than the chosen one"
        return ""

    def answered(self, connection: Connection, latency_s: float) -> None:
        self._answers += 1
        self._running -= 1
        now_s = time.perf_counter()
        if self._measure_from_s <= now_s < self._end_s:
            self._latencies_s.append(latency_s)
        if self._plan.rate_per_s:
            self._idle.append(connection)
            if self._due_s:
                self._send(self._idle.popleft(), self._due_s.popleft())
        elif now_s < self._end_s:
            self._send(connection, now_s)
        self._finish_when_over()

    def failed(self, what: str) -> None:
        self._errors += 1
        self._running -= 1
        self._first_error = self._first_error or what
        self._finish_when_over()

    def _send(self, connection: Connection, due_s: float) -> None:
        self._running += 1
        connection.send(next(self._requests), due_s)

    def _finish_when_over(self) -> None:
        if self._is_all_sent and self._running == 0 and not self._due_s:
            self._finished.set()

    async def _send_at_fixed_rate(self) -> None:
        """Latency counts from the wake-up: the loop's timers are 1 ms coarse, which is not the gateway's doing."""
        due_s = time.perf_counter()
        while due_s < self._end_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            now_s = time.perf_counter()
            if self._idle:
                self._send(self._idle.popleft(), now_s)
            else:
                self._due_s.append(now_s)
            due_s += 1 / self._plan.rate_per_s
        self._is_all_sent = True
        self._finish_when_over()


@lru_cache(maxsize=4)
def _bodies(size_bytes: int, model: str, seed: int) -> list[bytes]:
    return [chat_body("english", size_bytes, model, seed + n) for n in range(_BODIES)]


def _requests(plan: Plan) -> list[bytes]:
    bodies = _bodies(plan.body_bytes, plan.model, plan.seed)
    return [chat_request(plan.address, body, "bench" if plan.has_session else None) for body in bodies]


def chat_request(address: str, body: bytes, session_id: str | None) -> bytes:
    """A whole request as bytes of HTTP/1.1."""
    session = f"x-session-id: {session_id}\r\n" if session_id else ""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nuser-agent: fairlead-bench\r\naccept: */*\r\n"
        f"authorization: Bearer bench\r\n{session}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    import uvloop

    result = uvloop.run(Load(msgspec.json.decode(sys.argv[1].encode(), type=Plan)).run())
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
