"""Ask one engine to compute a prompt whose answer another will give, and learn how the other gets its KV.

It is an ordinary completion of one token with the connector's parameters (`engines.nixl`, `engines.mooncake`). Giving
up closes the connection, which aborts the request in the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import uuid4

import msgspec

from fairlead.access import PLAIN, Access
from fairlead.api.one_token import of_one_token, spans_to_split
from fairlead.core.blame import Blame
from fairlead.core.histogram import DURATION_SECONDS, Histogram
from fairlead.engines.alongside import Meeting, Prefill, Waiting, abort
from fairlead.engines.ask import UnansweredError, ask_once
from fairlead.engines.kv_transfer import Connector, Exported, Party, TransferError
from fairlead.engines.mooncake import Mooncake
from fairlead.engines.nixl import Nixl
from fairlead.engines.one_token_answer import OneTokenAnswer

_MOST_BYTES: Final = 8 << 20  # of an answer: NIXL names every block
_DISCOVERED_WITHIN_S: Final = 2.0  # a request is held meanwhile, which another engine can answer whole
_OK: Final = 200
_LEAST_FAULT: Final = 500
_BLAMES: Final[Mapping[str, Blame]] = {"refused": "nobody", "too_large": "nobody", "status": "either"}
_CONNECTORS: Final[Mapping[str, Connector]] = {"mooncake": Mooncake(), "nixl": Nixl()}

Header = tuple[bytes, bytes]


class Prefilled(msgspec.Struct, frozen=True):
    """A prompt that was computed. Unknown is None, which is not 0."""

    parameters: bytes  # in JSON, for the engine that answers
    prompt_tokens: int | None
    cached_tokens: int | None


class NotPrefilledError(Exception):
    """`reason` is one of a fixed set, for counting; `blames`: who is at fault."""

    def __init__(self, reason: str, *, blames: Blame) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blames = blames


class Alongside(msgspec.Struct, frozen=True):
    """A request as it goes to both servers of SGLang; `prefill` is what the one that computes the prompt gets."""

    body: bytes
    rid: str
    prefill: Prefill


class RemotePrefills:
    """Counts are since the start. `bootstraps` and `accesses` may be replaced at any time."""

    def __init__(self) -> None:
        self.bootstraps: Mapping[str, str] = {}  # endpoint address to host:port of its bootstrap server
        self.accesses: Mapping[str, Access] = {}  # how an endpoint is reached, by its address
        self.done = 0
        self.failed: Counter[str] = Counter()  # by reason
        self.seconds = Histogram(DURATION_SECONDS)
        self._alongside: set[asyncio.Task[None]] = set()

    def meeting(self, address: str, path: str, body: bytes, headers: Sequence[Header], within_s: float) -> Alongside:
        """`body`, a request to `path`, whose prompt `address` computes. Raises NotPrefilledError if it is for one."""
        bootstrap, spans = self.bootstraps.get(address, ""), spans_to_split(body)
        if not bootstrap or spans is None:
            reason = "one_engine" if bootstrap else "connector"
            self.failed[reason] += 1
            raise NotPrefilledError(reason, blames="nobody")
        meeting = Meeting.at(bootstrap)
        access = self.accesses.get(address, PLAIN)
        prefill = Prefill(address, access, path, meeting.for_prefill(body, spans), headers, within_s)
        return Alongside(meeting.written_into(body, spans), meeting.rid, prefill)

    def begin(self, asked: Alongside, waiting: Waiting, clock_s: Callable[[], float]) -> asyncio.Task[None]:
        """Ask for the prompt of the `waiting` request, which is aborted at its server where that fails.

        Whoever gets this task cancels it where the request ends without an answer.
        """
        task = asyncio.create_task(self._alongside_of(asked, waiting, clock_s), name=f"prefill {asked.rid}")
        self._alongside.add(task)
        task.add_done_callback(self._alongside.discard)
        return task

    async def stop(self) -> None:
        tasks = list(self._alongside)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _alongside_of(self, asked: Alongside, waiting: Waiting, clock_s: Callable[[], float]) -> None:
        began_s = clock_s()
        reason = await asked.prefill.done(waiting)
        now_s = clock_s()
        if not reason:
            self.done += 1
            self.seconds.observe(now_s - began_s)
            waiting.prefill_came(now_s)
            return
        self.failed[reason] += 1
        if waiting.is_over:
            return
        waiting.prefill_lost(now_s, blames=_BLAMES.get(reason, "engine"))
        await abort(waiting, self.accesses, asked.rid)

    async def compute(
        self, address: str, connector: str, path: str, body: bytes, headers: Sequence[Header], within_s: float
    ) -> Prefilled:
        """The prompt of `body`, a request to `path`, is computed at `address`. Raises NotPrefilledError."""
        began_s = time.monotonic()
        try:
            prefilled = await self._compute(address, connector, path, body, headers, within_s)
        except NotPrefilledError as error:
            self.failed[error.reason] += 1
            raise
        self.done += 1
        self.seconds.observe(time.monotonic() - began_s)
        return prefilled

    async def _compute(
        self, address: str, name: str, path: str, body: bytes, headers: Sequence[Header], within_s: float
    ) -> Prefilled:
        connector, source = _CONNECTORS.get(name), Party(address, self.bootstraps.get(address, ""))
        spans = spans_to_split(body)
        if connector is None or spans is None:
            raise NotPrefilledError("connector" if connector is None else "one_engine", blames="nobody")
        transfer_id, exported = uuid4().hex, None
        try:
            discovered = await connector.discover(source, _DISCOVERED_WITHIN_S)
            asked = of_one_token(body, spans, msgspec.json.encode(connector.to_export(transfer_id)))
            completion = await _ask(address, path, asked, headers, within_s, self.accesses.get(address, PLAIN))
            exported = Exported(completion.cached_tokens, completion.kv_transfer_params)
            parameters = connector.to_import(transfer_id, source, discovered, exported)
        except TransferError as error:
            blames: Blame = "engine" if error.stage == "discover" else "connection"
            if exported is not None and exported.kv_transfer_params is not None:
                blames = "nobody"  # it has the connector, and nothing to pass on of this prompt, as of a short one
            raise NotPrefilledError(f"{error.stage}_{error.reason}", blames=blames) from None
        return Prefilled(msgspec.json.encode(parameters), completion.usage.prompt_tokens, completion.cached_tokens)


async def _ask(
    address: str, path: str, body: bytes, headers: Sequence[Header], within_s: float, access: Access
) -> OneTokenAnswer:
    try:
        answer = await ask_once(address, path, within_s, _MOST_BYTES, post=body, headers=headers, access=access)
    except UnansweredError as error:
        raise NotPrefilledError(error.reason, blames=_BLAMES.get(error.reason, "engine")) from None
    if answer.status != _OK:
        raise NotPrefilledError("status", blames="either" if answer.status >= _LEAST_FAULT else "nobody")
    try:
        completion = msgspec.json.decode(answer.body, type=OneTokenAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotPrefilledError("foreign", blames="connection") from None
    if not completion.is_of_one_token:
        raise NotPrefilledError("finish_reason", blames="connection")
    return completion
