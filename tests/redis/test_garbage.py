"""A store that does not answer as Redis does: a fake, as the real one cannot be made to."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.redis.server import RedisServer
from tests.redis.world import Sidecar, until

MESSAGE = b"*3\r\n$7\r\nmessage\r\n$3\r\n"
SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$3\r\nabc\r\n:1\r\n"
GARBAGE = {
    "text": b"garbage\r\n" * 20,
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a length below zero": b"$-5\r\n" * 9,
    "a length of terabytes": b"$99999999999999\r\nabc",
    "an array without end": b"*99999999999\r\n:1\r\n",
    "a number that is none": b":abc\r\n" * 9,
    "nested too deep": b"*1\r\n" * 5_000,
    "nothing found": b"$-1\r\n" * 9,
    "loading": b"-LOADING Redis is loading\r\n" * 9,
    "another node": b"-MOVED 1 10.1.2.3:1\r\n" * 9,
    "numbers for names": b"*3\r\n:1\r\n:2\r\n:3\r\n" * 9,
    "half": b"*3\r\n$9\r\nsubscr",
    "no text": b"*3\r\n$9\r\nsubscribe\r\n$2\r\n\xff\xfe\r\n:1\r\n" * 9,
    "a line without end": b"\0" * 200_000,
    "messages of channels that nobody asked for": SUBSCRIBED * 9
    + b"*3\r\n$7\r\nmessage\r\n$3\r\nabc\r\n$1\r\nx\r\n" * 9,
    "a message that is a number": SUBSCRIBED * 9 + (MESSAGE + b"abc\r\n:5\r\n") * 9,
    "a message that is cut": SUBSCRIBED * 9 + MESSAGE,
    "the end": b"",
}


class Fake:
    """Answers all that it reads with the same bytes, or closes where there are none."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.read(65536) and self._payload:
                writer.write(self._payload)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE)
async def test_it_is_counted_told_in_a_sentence_and_the_local_table_serves(payload: bytes) -> None:
    fake = Fake(payload)
    server = await asyncio.start_server(fake, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with capture_logs() as logs:
        sidecar = Sidecar(f"redis://127.0.0.1:{port}/0")
        await until(lambda: sidecar.store.link.failures >= 2, "it has tried again")
        assert sidecar.turn("s", "a:1") == sidecar.turn("s", "b:1") == "a:1"
        await sidecar.store.stop()
    server.close()
    assert fake.connections >= 2
    assert {(line["log_level"], line["event"]) for line in logs} == {
        ("warning", "the store cannot be used, the local table serves")
    }
    assert len(logs) == 1  # not one for each try
    assert "Traceback" not in logs[0]["cause"]


async def test_when_a_real_one_takes_its_place_what_was_bound_is_shared(redis: RedisServer) -> None:
    redis.kill()
    server = await asyncio.start_server(Fake(b":abc\r\n" * 9), "127.0.0.1", redis.port)
    sidecar = Sidecar(redis.url)
    sidecar.bind("s", "a:1")
    await until(lambda: sidecar.store.link.failures >= 1, "the fake has failed it")
    server.close()
    await server.wait_closed()
    redis.start()
    await until(sidecar.idle, "the binding is written")
    other = Sidecar(redis.url)
    await until(lambda: other.host("s") == "a:1", "another sidecar has learned it")
    for each in (sidecar, other):
        await each.store.stop()
