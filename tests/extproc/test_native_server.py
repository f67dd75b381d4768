"""One call of Envoy's on Fairlead's own edge: when its replies are sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import pytest

from fairlead.edge.grpc import Call
from fairlead.extproc.body_reader import BodyReader
from fairlead.extproc.messages import read
from fairlead.extproc.native_server import ProcessCall
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.services import Services
from tests.extproc.world import chat, make_services, request_body, request_headers, response_headers
from tests.waiting import until

BODY = chat(messages=[{"role": "user", "content": "words " * 1_000_000}])


@pytest.fixture
def services() -> Iterator[Services]:
    reader = BodyReader(1)
    reader.start()
    yield replace(make_services(), max_body_bytes=32 << 20, reader=reader)
    reader.stop()


class Peer:
    """The edge's side of a call: keeps what is sent, by the turn of the loop in which it was."""

    def __init__(self) -> None:
        self.metadata: dict[bytes, bytes] = {}
        self.is_open = True
        self.turns: list[list[bytes]] = [[]]
        asyncio.get_running_loop().call_soon(self._next_turn)

    def send(self, message: bytes, body: Sequence[bytes] = ()) -> None:
        assert self.is_open
        self.turns[-1].append(b"".join((message, *body)))

    def finish(self) -> None:
        self.is_open = False

    def replies(self) -> list[pb.ProcessingResponse]:
        return [pb.ProcessingResponse.FromString(message) for turn in self.turns for message in turn]

    def _next_turn(self) -> None:
        if self.turns[-1]:
            self.turns.append([])
        if self.is_open:
            asyncio.get_running_loop().call_soon(self._next_turn)


def streaming(peer: Peer, services: Services) -> ProcessCall:
    """A call whose request of several MB is to be streamed back, and whose answer has begun."""
    call = ProcessCall(cast("Call", peer), services)
    messages = request_headers(mode=pb.FULL_DUPLEX_STREAMED), request_body(BODY), response_headers(end=True)
    for message in messages:
        call.message(read((message.SerializeToString(),)))
    return call


def in_flight(services: Services) -> int:
    return sum(endpoint.load.inflight_requests for endpoint in services.router.pool.endpoints)


async def test_a_long_body_is_streamed_back_in_many_turns_and_in_order(services: Services) -> None:
    """In one turn it would delay every neighbour."""
    peer = Peer()
    call = streaming(peer, services)
    call.half_closed()  # waits for the replies, too
    await until(lambda: not peer.is_open)
    replies = peer.replies()
    chunks = [r.request_body.response.body_mutation.streamed_response for r in replies if r.HasField("request_body")]
    assert [chunk.end_of_stream for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert json.loads(b"".join(chunk.body for chunk in chunks))["messages"] == json.loads(BODY)["messages"]
    assert replies[-1].HasField("response_headers")
    assert max(map(len, peer.turns)) <= 33 < len(chunks)
    call.closed()
    assert in_flight(services) == 0


async def test_a_client_that_leaves_meanwhile_gets_no_more_and_leaves_nothing(services: Services) -> None:
    peer = Peer()
    call = streaming(peer, services)
    await until(lambda: len(peer.replies()) > 1)
    peer.is_open = False
    sent = len(peer.replies())
    call.closed()
    await asyncio.sleep(0.05)
    assert (len(peer.replies()), in_flight(services)) == (sent, 0)
