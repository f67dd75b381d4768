"""Copy a prompt's KV from one vLLM to another: two ordinary completions of the same tokens, and proof that it worked.

    export: the source computes one token more and offers the prompt's KV under a transfer's name
    import: the target takes the KV from the source in place of computing it

What the two completions carry is a connector's matter (`engines.mooncake`, `engines.nixl`); what holds for all of them
is here. The prompt is the same list of token ids on both sides, cut to whole blocks: a target whose prompt is shorter
than the export installs wrong KV in silence, and a longer one kills the target under NIXL. Each leg has a deadline, and
giving up closes the connection, which aborts the request in the engine. The source keeps the exported blocks until they
are taken, so an export that succeeded is followed by its import whatever else is found.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar
from uuid import uuid4

import msgspec

from fairlead.core.moves import transfers_safely
from fairlead.engines import metrics_text
from fairlead.engines.ask import Answer, UnansweredError, ask_once

Stage = Literal["discover", "tokenize", "export", "import", "confirm"]

LEAST_CACHED_SHARE: Final = 0.5  # of the export, at the source; below it was evicted, or these are other tokens
_SMALL_BYTES: Final = 256 * 1024
_MOST_TOKEN_BYTES: Final = 8 << 20  # of /tokenize: about a million tokens
_CONFIRM_EVERY_S: Final = 0.05
_TOKENS: Final = re.compile(
    rb'\nvllm:prompt_tokens_by_source_total\{[^\n}]*source="external_kv_transfer"[^\n}]*\} ([0-9.e+]+)'
)
_BYTES: Final = re.compile(rb"\nvllm:nixl_bytes_transferred_sum\{[^\n}]*\} ([0-9.e+]+)")


class Deadlines(msgspec.Struct, frozen=True):
    """Of each leg, in seconds. An export waits in the queue of a hot engine."""

    discover_s: float = 2.0
    tokenize_s: float = 10.0
    export_s: float = 30.0
    import_s: float = 30.0
    confirm_s: float = 1.0


class Party(msgspec.Struct, frozen=True):
    """An engine that KV is copied from or to. `bootstrap` is host:port of its Mooncake bootstrap server."""

    address: str
    bootstrap: str = ""


class TransferError(Exception):
    """A transfer failed in `stage`; `reason` is one of a few words, for counting."""

    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(f"{stage}: {reason}")
        self.stage: Stage = stage
        self.reason = reason


class Exported(msgspec.Struct, frozen=True):
    """What the source said to the export. Unknown is None, which is not 0."""

    cached_tokens: int | None
    kv_transfer_params: Mapping[str, Any] | None


class Copied(msgspec.Struct, frozen=True):
    """A copy that was confirmed, with the seconds that each of its legs took."""

    tokens: int
    transferred_tokens: int | None  # of them; the others the target held already; None: it does not tell
    transferred_bytes: int | None  # as the target tells; None: it does not
    seconds: Mapping[Stage, float]


class Connector(Protocol):
    """What a kind of transfer says in the two completions. Methods raise TransferError."""

    longest_import_s: float  # after the export

    async def discover(self, source: Party) -> str:
        """What the source must be asked before; empty where there is nothing to ask."""
        ...

    def to_export(self, transfer_id: str) -> Mapping[str, Any]:
        """`kv_transfer_params` of the source's completion."""
        ...

    def to_import(self, transfer_id: str, source: Party, discovered: str, exported: Exported) -> Mapping[str, Any]:
        """`kv_transfer_params` of the target's completion, with every key that the target needs."""
        ...


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage
    kv_transfer_params: dict[str, Any] | None = None


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Version(msgspec.Struct):
    version: str


class _Taken(NamedTuple):
    """What an engine has taken from others, since it started or in one copy; None where it does not tell."""

    tokens: int | None
    bytes: int | None


async def ask(
    stage: Stage,
    address: str,
    path: str,
    timeout_s: float,
    *,
    post: bytes | None = None,
    most_bytes: int = _SMALL_BYTES,
) -> Answer:
    """Raises TransferError for no answer in time and for any status but 200."""
    try:
        answer = await ask_once(address, path, timeout_s, most_bytes, post=post)
    except UnansweredError as error:
        raise TransferError(stage, error.reason) from None
    if answer.status != 200:
        raise TransferError(stage, "status")
    return answer


async def tokenize(party: Party, body: bytes, timeout_s: float) -> list[int]:
    """The token ids of the prompt that `body`, a request to /tokenize, has."""
    answer = await ask("tokenize", party.address, "/tokenize", timeout_s, post=body, most_bytes=_MOST_TOKEN_BYTES)
    return _read("tokenize", answer.body, _Tokens).tokens


async def check_version(party: Party, timeout_s: float) -> None:
    """Raises TransferError where a failed transfer would hang the engine's request for ever."""
    answer = await ask("discover", party.address, "/version", timeout_s)
    if not transfers_safely(_read("discover", answer.body, _Version).version):
        raise TransferError("discover", "version")


async def complete(
    stage: Literal["export", "import"],
    party: Party,
    model: str,
    ids: Sequence[int],
    params: Mapping[str, Any],
    timeout_s: float,
) -> Exported:
    """One completion of one token. Raises TransferError unless the engine took exactly these tokens to the end."""
    body = {
        "model": model,
        "prompt": ids,
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
        "stream": False,
        "kv_transfer_params": params,
    }
    answer = await ask(stage, party.address, "/v1/completions", timeout_s, post=msgspec.json.encode(body))
    completion = _read(stage, answer.body, _Completion)
    if completion.usage.prompt_tokens != len(ids):
        raise TransferError(stage, "tokens")
    if [choice.finish_reason for choice in completion.choices] != ["length"]:
        raise TransferError(stage, "finish_reason")
    details = completion.usage.prompt_tokens_details
    return Exported(details.cached_tokens if details is not None else None, completion.kv_transfer_params)


async def taken(party: Party, timeout_s: float) -> _Taken:
    """By the engine's own counters."""
    answer = await ask("confirm", party.address, "/metrics", timeout_s, most_bytes=metrics_text.MOST_BYTES)
    return _Taken(_sum(_TOKENS, answer.body), _sum(_BYTES, answer.body))


async def copy_kv(
    connector: Connector,
    source: Party,
    target: Party,
    model: str,
    ids: Sequence[int],
    block_tokens: int,
    deadlines: Deadlines,
) -> Copied:
    """Copy the KV of `ids`, which must be whole blocks. Raises TransferError; the target then may hold them or not.

    At most one copy into the same target at a time: the proof is the rise of a counter that all imports share.
    """
    seconds: dict[Stage, float] = {}
    with _timed(seconds, "discover"):
        await check_version(source, deadlines.discover_s)
        await check_version(target, deadlines.discover_s)
        discovered = await connector.discover(source)
        before = await taken(target, deadlines.discover_s)
    transfer_id = uuid4().hex
    with _timed(seconds, "export"):
        params = connector.to_export(transfer_id)
        exported = await complete("export", source, model, ids, params, deadlines.export_s)
    with _timed(seconds, "import"):
        params = connector.to_import(transfer_id, source, discovered, exported)
        timeout_s = min(deadlines.import_s, connector.longest_import_s)
        imported = await complete("import", target, model, ids, params, timeout_s)
    if exported.cached_tokens is not None and exported.cached_tokens < LEAST_CACHED_SHARE * len(ids):
        raise TransferError("export", "not_cached")
    with _timed(seconds, "confirm"):
        rise = await _rise(target, before, deadlines.confirm_s)
    if rise.tokens is None and (imported.cached_tokens or 0) < len(ids) - 2 * block_tokens:
        raise TransferError("confirm", "not_cached")
    return Copied(len(ids), rise.tokens, rise.bytes, seconds)


async def _rise(target: Party, before: _Taken, timeout_s: float) -> _Taken:
    """How much the target took; raises TransferError if nothing. The engine counts a little after it has answered.

    Its own counter comes before the `cached_tokens` that it answers with, which are those it had hoped for.
    """
    if before.tokens is None:
        return _Taken(None, None)
    until_s = time.monotonic() + timeout_s
    while True:
        after = await taken(target, timeout_s)
        if after.tokens is not None and after.tokens > before.tokens:
            rise_bytes = None if after.bytes is None or before.bytes is None else after.bytes - before.bytes
            return _Taken(after.tokens - before.tokens, rise_bytes or None)
        if time.monotonic() > until_s:
            raise TransferError("confirm", "nothing_came")
        await asyncio.sleep(_CONFIRM_EVERY_S)


@contextmanager
def _timed(seconds: dict[Stage, float], stage: Stage) -> Iterator[None]:
    began_s = time.monotonic()
    yield
    seconds[stage] = time.monotonic() - began_s


def _sum(series: re.Pattern[bytes], page: bytes) -> int | None:
    """Over the engines of one server; None where the page has no such series."""
    found = series.findall(b"\n" + page)
    return round(sum(map(float, found))) if found else None


_Answer = TypeVar("_Answer")


def _read(stage: Stage, body: bytes, kind: type[_Answer]) -> _Answer:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise TransferError(stage, "foreign") from None
