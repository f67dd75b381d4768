"""One step of each kind of attack. What it sends comes from its `Random` alone, so a seed and a number repeat it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from fairlead.edge.http2 import frames as f
from fairlead.edge.http2 import header_block
from tests.edge.peer import data, headers, message, setting
from tests.fuzz import wire
from tests.fuzz.bodies import hostile, long_one

_CONNECT_S = 5.0
_ANSWER_S = 5.0
_RESET_AT_ONCE = struct.pack("ii", 1, 0)


@dataclass
class Target:
    processor: tuple[str, int]
    gateway: tuple[str, int]


@dataclass
class Step:
    """One attack: what it says of itself, and what was sent."""

    family: str
    number: int
    seed: int
    what: list[str] = field(default_factory=list)

    def random(self) -> Random:
        return Random(f"{self.seed}/{self.family}/{self.number}")

    async def run(self, target: Target) -> None:
        self.what.clear()
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            await FAMILIES[self.family](self.random(), target, self.what.append)

    def __str__(self) -> str:
        return f"--seed {self.seed} --step {self.family}:{self.number}: {'; '.join(self.what)}"


Say = Callable[[str], object]
Attack = Callable[[Random, Target, Say], Awaitable[None]]


class Wire:
    """A connection that sends bytes cut at any place, and drops what it is answered, or does not read at all."""

    def __init__(self, random: Random, address: tuple[str, int], *, reads: bool = True) -> None:
        self._random = random
        self._address = address
        self._reads = reads
        self._reading: asyncio.Task[None] | None = None
        self.received = 0
        self._came = asyncio.Event()

    async def __aenter__(self) -> Wire:
        async with asyncio.timeout(_CONNECT_S):
            reader, self._writer = await asyncio.open_connection(*self._address)
        if self._reads:
            self._reading = asyncio.create_task(self._drop(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._random.random() < 0.3:
            with suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
        self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    @property
    def socket(self) -> socket.socket:
        found: socket.socket = self._writer.get_extra_info("socket")
        return found

    async def send(self, said: bytes, *, pieces: int | None = None) -> None:
        """In so many pieces, each of them its own write."""
        count = self._random.choice((1, 1, 2, 5, 40)) if pieces is None else pieces
        cuts = sorted(self._random.randrange(len(said) + 1) for _ in range(count - 1))
        for start, end in zip([0, *cuts], [*cuts, len(said)], strict=True):
            self._writer.write(said[start:end])
            async with asyncio.timeout(_ANSWER_S):
                await self._writer.drain()
            if count > 1:
                await asyncio.sleep(0)

    async def answered(self, seconds: float = 0.2) -> None:
        """Until something new has come, or for so long."""
        self._came.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._came.wait()

    def end(self) -> None:
        with suppress(OSError):
            self._writer.write_eof()

    async def _drop(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while part := await reader.read(1 << 16):
                self.received += len(part)
                self._came.set()


async def frames(random: Random, target: Target, say: Say) -> None:
    """Frames of any kind among legal ones."""
    count = random.choice((1, 5, 30, 200))
    say(f"{count} frames of any kind")
    parts = [mutated_or(random, wire.GREETING, 0.1), mutated_or(random, wire.ACK, 0.1)]
    highest = 1
    for _ in range(count):
        if random.random() < 0.4:
            highest += 2
            body = hostile(random)[1][:5000]
            parts.append(wire.opening(highest))
            parts += [data(highest, message(m.SerializeToString())[:16000]) for m in wire.conversation(random, body)]
        else:
            parts.append(wire.any_frame(random, highest))
    async with Wire(random, target.processor, reads=random.random() < 0.8) as peer:
        await peer.send(b"".join(parts))
        await peer.answered()


async def order(random: Random, target: Target, say: Say) -> None:
    """Legal frames, messages in any order, on several streams at once."""
    async with Wire(random, target.processor) as peer:
        await peer.send(wire.GREETING + wire.ACK, pieces=1)
        for number in range(random.choice((1, 3, 20))):
            stream_id = 2 * number + 1
            what, body = hostile(random)
            said = wire.out_of_order(random, wire.conversation(random, body[:60_000]))
            kinds = [each.WhichOneof("request") for each in said]
            say(f"{what}: {kinds}")
            await peer.send(wire.opening(stream_id), pieces=1)
            for each in said:
                await peer.send(wire.in_frames(stream_id, message(each.SerializeToString())), pieces=1)
                if random.random() < 0.3:
                    await peer.answered(0.05)
            ending = random.randrange(3)
            if ending == 0:
                await peer.send(data(stream_id, ends=True))
            elif ending == 1:
                await peer.send(f.rst_stream(stream_id, f.ErrorCode.INTERNAL_ERROR))
        await peer.answered()


async def messages(random: Random, target: Target, say: Say) -> None:
    """Messages whose protobuf or prefix is broken."""
    async with Wire(random, target.processor) as peer:
        await peer.send(wire.GREETING + wire.ACK)
        for number in range(random.choice((1, 5, 20))):
            stream_id = 2 * number + 1
            what, body = hostile(random)
            say(what)
            timeout = ((b"grpc-timeout", random.choice((b"1m", b"0n", b"99999999H", b"x"))),)
            await peer.send(wire.opening(stream_id, more=timeout if random.random() < 0.1 else ()))
            for each in wire.conversation(random, body[:60_000]):
                raw = mutated_or(random, each.SerializeToString(), 0.4)
                await peer.send(wire.in_frames(stream_id, wire.prefixed(random, raw), random.choice((16_384, 1000))))
            await peer.send(data(stream_id, ends=random.random() < 0.5))
        await peer.answered()


async def bodies(random: Random, target: Target, say: Say) -> None:
    """Hostile bodies, whole, and answered."""
    what, body = long_one(random) or hostile(random)
    say(what)
    async with Wire(random, target.processor) as peer:
        await peer.send(wire.GREETING + setting(4, f.MAX_WINDOW) + wire.ACK, pieces=1)
        await peer.send(wire.opening(1), pieces=1)
        for each in wire.conversation(random, body):
            await peer.send(wire.in_frames(1, message(each.SerializeToString())), pieces=1)
            await peer.answered(1.0 if len(body) > 250_000 else 0.05)
        await peer.send(data(1, ends=True), pieces=1)
        await peer.answered()


async def aborts(random: Random, target: Target, say: Say) -> None:
    """A legal conversation that stops at any byte, or on a peer that reads nothing."""
    what, body = long_one(random) or hostile(random)
    parts = [wire.GREETING, wire.ACK]
    if random.random() < 0.3:
        parts.insert(1, setting(4, random.choice((0, 3, 100))))
    for number in range(random.choice((1, 1, 10))):
        stream_id = 2 * number + 1
        parts.append(wire.opening(stream_id))
        said = wire.conversation(random, body if number == 0 else body[:2000])
        parts += [wire.in_frames(stream_id, message(each.SerializeToString())) for each in said]
    whole = b"".join(parts)
    stop = random.randrange(len(whole) + 1)
    say(f"{what}, cut after {stop} of {len(whole)} bytes")
    async with Wire(random, target.processor, reads=random.random() < 0.7) as peer:
        await peer.send(whole[:stop])
        ending = random.randrange(3)
        if ending == 0:
            peer.end()
        elif ending == 1:
            await peer.send(f.rst_stream(1, f.ErrorCode.CANCEL), pieces=1)
        await peer.answered(random.choice((0.0, 0.02, 0.3)))


_BEHAVIOURS = ("", "", "", "sse", "cut", "garbage", "500", "slow", "no-answer", "usage")
_FORGED = (
    "x-gateway-destination-endpoint: 127.0.0.1:1", "x-fairlead-destination: x", "x-tenant: other", "x-session-id: s",
    "x-fairlead-attempted-models: small", "content-encoding: gzip", "expect: 100-continue", "te: trailers",
)  # fmt: skip


async def http1(random: Random, target: Target, say: Say) -> None:
    """A client of Envoy's that speaks HTTP/1.1 badly, or well and ill-meaning."""
    what, body = long_one(random) or hostile(random)
    path = random.choice(wire.PATHS[:12]) if random.random() < 0.5 else wire.PATHS[0]
    method = random.choice(("POST", "POST", "POST", "POST", "GET", "PUT", "OPTIONS"))
    version = random.choice(("1.1", "1.1", "1.1", "1.0", "9.9"))
    lines = [f"{method} {path or '/'} HTTP/{version}", "host: fuzz", "content-type: application/json"]
    lines += [f"x-behave: {random.choice(_BEHAVIOURS)}", *random.sample(_FORGED, random.randrange(3))]
    if random.random() < 0.05:
        lines += [f"x-{number}: {'v' * 100}" for number in range(random.choice((50, 150, 900)))]
    framing = random.randrange(8)
    if framing < 4:
        lines.append(f"content-length: {len(body)}")
        payload = body
    elif framing < 6:
        lines.append("transfer-encoding: chunked")
        size = random.choice((10, 1000, 60_000)) if len(body) < 500_000 else 60_000
        cut = [body[at : at + size] for at in range(0, len(body), size)]
        payload = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in cut) + b"0\r\n\r\n"
    else:
        lines.append(random.choice(("content-length: 5", "content-length: -1", "transfer-encoding: x", "x: y")))
        payload = body
    said = "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + payload
    said = mutated_or(random, said, 0.15)
    if random.random() < 0.3:
        said = said[: random.randrange(len(said) + 1)]
    say(f"{method} {path[:40]}, {what}, {len(said)} bytes of HTTP/1")
    async with Wire(random, target.gateway) as peer:
        await peer.send(said * random.choice((1, 1, 1, 3)) if len(said) < 10_000 else said)
        await peer.answered(random.choice((0.0, 0.05, 2.0)))


async def http2(random: Random, target: Target, say: Say) -> None:
    """A client of Envoy's that speaks HTTP/2: trailers, resets, odd framing."""
    async with Wire(random, target.gateway) as peer:
        await peer.send(wire.GREETING + wire.ACK, pieces=1)
        for number in range(random.choice((1, 1, 5))):
            stream_id = 2 * number + 1
            what, body = hostile(random)
            trailers, abort = random.random() < 0.3, random.random() < 0.3
            say(f"{what}{', trailers' * trailers}{', reset' * abort}")
            fields = (
                (b":method", b"POST"), (b":scheme", b"http"), (b":path", random.choice(wire.PATHS[:12]).encode()),
                (b":authority", b"fuzz"), (b"content-type", b"application/json"),
                (b"x-behave", random.choice(_BEHAVIOURS).encode()),
            )  # fmt: skip
            await peer.send(headers(stream_id, header_block(fields)), pieces=1)
            await peer.send(wire.in_frames(stream_id, body[:60_000]), pieces=2)
            if abort:
                await peer.send(f.rst_stream(stream_id, f.ErrorCode.CANCEL))
            elif trailers:
                await peer.send(headers(stream_id, header_block(((b"x-trailer", b"1"),)), ends=True))
            elif random.random() < 0.9:
                await peer.send(data(stream_id, ends=True))
            if random.random() < 0.1:
                await peer.send(wire.any_frame(random, stream_id))
        await peer.answered(random.choice((0.0, 0.1, 2.0)))


def mutated_or(random: Random, said: bytes, share: float) -> bytes:
    return wire.mutated(random, said) if random.random() < share else said


FAMILIES: dict[str, Attack] = {
    each.__name__: each for each in (frames, order, messages, bodies, aborts, http1, http2)
}  # fmt: skip
