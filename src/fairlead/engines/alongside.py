"""SGLang's way to split prefill from decoding: both servers get the request at the same time, and meet by a number.

The prefill server answers once the decode server has the KV, and the decode server waits for it, by default up to five
minutes. So whoever finds that the prefill server has failed, or answers nobody, aborts the request at the other.
Parameters as SGLang's own router sends them (0.5.23).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol
from uuid import uuid4

import msgspec

from fairlead.access import PLAIN, Access
from fairlead.addresses import host_and_port
from fairlead.api.edits import with_values
from fairlead.api.spans import Span
from fairlead.core.blame import Blame
from fairlead.engines.ask import UnansweredError, ask_once

MOST_S: Final = 300.0  # for which SGLang's servers wait for each other
_MOST_BYTES: Final = 1 << 20
_ROOM_BITS: Final = 63
_ABORT: Final = "/abort_request"
_ABORT_EVERY_S: Final = 1.0  # it may come before the request does
_ABORT_WITHIN_S: Final = 2.0
_OK: Final = 200
_LEAST_FAULT: Final = 500
_chance: Final = random.SystemRandom()  # two sidecars must not choose the same number


class Waiting(Protocol):
    """A request that waits for its prompt. Times are of its router's clock."""

    @property
    def may_be_at(self) -> Collection[str]:
        """Addresses where it may be."""
        ...

    @property
    def is_over(self) -> bool:
        """It has ended, with an answer or without."""
        ...

    @property
    def prefiller_is_silent(self) -> bool:
        """The server that is to compute its prompt has answered nobody since, and no part of its answer was seen."""
        ...

    def prefill_came(self, now_s: float) -> None: ...

    def prefill_lost(self, now_s: float, *, blames: Blame) -> None:
        """`blames`: who is at fault."""
        ...


class Meeting(msgspec.Struct, frozen=True):
    """What both servers are told, along with the request. `rid` begins no other request's: SGLang aborts by prefix."""

    host: str  # of the prefill server's bootstrap server
    port: int
    room: int
    rid: str

    @classmethod
    def at(cls, bootstrap: str) -> Meeting:
        host, port = host_and_port(bootstrap)
        return cls(host, port, _chance.getrandbits(_ROOM_BITS), uuid4().hex)

    def written_into(self, body: bytes, spans: Mapping[str, Span]) -> bytes:
        return with_values(body, spans, self._values())

    def for_prefill(self, body: bytes, spans: Mapping[str, Span]) -> bytes:
        """It answers in one piece; how long the answer may be and how it is sampled counts for its one token, too."""
        options = {"stream_options": b"null"} if "stream_options" in spans else {}
        return with_values(body, spans, {**self._values(), "stream": b"false", **options})

    def _values(self) -> dict[str, bytes]:
        values = {"bootstrap_host": self.host, "bootstrap_port": self.port, "bootstrap_room": self.room}
        return {key: msgspec.json.encode(value) for key, value in {**values, "rid": self.rid}.items()}


class Prefill(msgspec.Struct, frozen=True):
    """One request at a prefill server; `access` is how that is reached, `within_s` when it should have answered."""

    address: str
    access: Access
    path: str
    body: bytes
    headers: Sequence[tuple[bytes, bytes]]
    within_s: float = MOST_S

    async def done(self, waiting: Waiting) -> str:
        """Why its prompt was not computed, and passed on, in a word; empty if it was. Cancelling it aborts it.

        A server that is late waits perhaps for room at the decode server; one that answers nobody else either is
        given up.
        """
        answer = asyncio.create_task(self._answer())
        try:
            while not (await asyncio.wait([answer], timeout=self.within_s))[0]:
                if waiting.prefiller_is_silent:
                    return "late"
            return answer.result()
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    async def _answer(self) -> str:
        try:
            answer = await ask_once(
                self.address, self.path, MOST_S, _MOST_BYTES, post=self.body, headers=self.headers, access=self.access
            )
        except UnansweredError as error:
            return error.reason
        if answer.status == _OK:
            return ""
        return "status" if answer.status >= _LEAST_FAULT else "refused"


async def abort(waiting: Waiting, accesses: Mapping[str, Access], rid: str) -> None:
    """Abort a request at each server that may have it, again and again until it is over."""
    post = msgspec.json.encode({"rid": rid})
    while not waiting.is_over:
        questions = [
            ask_once(at, _ABORT, _ABORT_WITHIN_S, _MOST_BYTES, post=post, access=accesses.get(at, PLAIN))
            for at in waiting.may_be_at
        ]
        await asyncio.gather(*questions, return_exceptions=True)  # one that is gone has nothing to abort
        await asyncio.sleep(_ABORT_EVERY_S)
