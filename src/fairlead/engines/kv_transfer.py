"""Copy a prompt's KV from one vLLM to another: two ordinary completions of the same tokens, and a check that it worked.

    export: the source computes one token more and offers the prompt's KV under a transfer's name
    import: the target takes the KV from the source in place of computing it

The connector decides what the two completions carry (`engines.mooncake`, `engines.nixl`); what all have in common is
here. The prompt is the same list of token ids on both sides, cut to whole blocks: a target whose prompt is shorter than
the export silently installs wrong KV, and under NIXL a longer one crashes it. Each leg has a deadline, and giving up
closes the connection, which aborts the request in the engine. The source keeps the exported blocks until they are
fetched, so an export that succeeded is always followed by its import.
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

from fairlead.access import PLAIN, Access
from fairlead.api.paths import COMPLETIONS, TOKENIZE
from fairlead.dialects.vllm import transfers_safely
from fairlead.engines import metrics_text
from fairlead.engines.ask import Answer, UnansweredError, ask_once
from fairlead.engines.one_token_answer import OneTokenAnswer

Stage = Literal["discover", "tokenize", "export", "import", "confirm"]

LEAST_CACHED_SHARE: Final = (
    0.5  # share of the export's tokens cached at the source; below it they were evicted, or are other tokens
)
_SMALL_BYTES: Final = 256 * 1024
_MOST_TOKEN_BYTES: Final = 8 << 20  # answer of /tokenize: about a million tokens
_CONFIRM_EVERY_S: Final = 0.05
_LEAST_TAKEN_SHARE: Final = 0.95  # of the tokens that must have come: block sizes and estimates differ a little
_COMPUTED_SHARE: Final = 0.5  # of the tokens: a target that computed as many may have computed the prompt itself
_TOKENS, _LOCAL, _COMPUTED = (
    re.compile(rb'\nvllm:prompt_tokens_by_source_total\{[^\n}]*source="' + source + rb'"[^\n}]*\} ([0-9.e+]+)')
    for source in (b"external_kv_transfer", b"local_cache_hit", b"local_compute")
)
_BYTES: Final = re.compile(rb"\nvllm:nixl_bytes_transferred_sum\{[^\n}]*\} ([0-9.e+]+)")


class Deadlines(msgspec.Struct, frozen=True):
    """Deadline of each leg, in seconds. An export waits in the queue of a hot engine, and each question before it may
    wait for one that is busy too.
    """

    discover_s: float = 10.0
    tokenize_s: float = 10.0
    export_s: float = 30.0
    import_s: float = 30.0
    confirm_s: float = 1.0


class Party(msgspec.Struct, frozen=True):
    """An engine that KV is copied from or to. `bootstrap` is host:port of its Mooncake bootstrap server."""

    address: str
    bootstrap: str = ""
    access: Access = PLAIN  # of its API


class TransferError(Exception):
    """A transfer failed in `stage`; `reason` is one of a fixed set, for counting."""

    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(f"{stage}: {reason}")
        self.stage: Stage = stage
        self.reason = reason

    @property
    def is_the_prompts(self) -> bool:
        """Whether the prompt is why it failed, and no engine: it cannot be tokenized, or its KV is not there. Whoever
        sends such prompts must not keep others' sessions from moving.
        """
        return (self.stage, self.reason) in (("tokenize", "refused"), ("export", "refused"), ("export", "not_cached"))


class Exported(msgspec.Struct, frozen=True):
    """The source's answer to the export. Unknown values are None, which is not 0."""

    cached_tokens: int | None
    kv_transfer_params: Mapping[str, Any] | None


class Copied(msgspec.Struct, frozen=True):
    """A copy that was confirmed, with the seconds that each of its legs took."""

    tokens: int
    transferred_tokens: int | None  # tokens transferred; the target held the others already; None: not reported
    transferred_bytes: int | None  # as the target reports; None: not reported
    seconds: Mapping[Stage, float]


class Prompt(msgspec.Struct, frozen=True):
    """What is copied: token ids, whole blocks of them."""

    model: str
    ids: Sequence[int]
    block_tokens: int
    cache_salt: str = ""  # empty: none
    known_tokens: int = 0  # that the target is believed to hold already: these are not transferred


class Connector(Protocol):
    """The parameters that a kind of transfer puts into the two completions. Methods raise TransferError."""

    longest_import_s: float  # after the export

    async def discover(self, source: Party, within_s: float) -> str:
        """What must be asked of the source beforehand; empty if nothing."""
        ...

    def to_export(self, transfer_id: str) -> Mapping[str, Any]:
        """`kv_transfer_params` of the source's completion."""
        ...

    def to_import(self, transfer_id: str, source: Party, discovered: str, exported: Exported) -> Mapping[str, Any]:
        """`kv_transfer_params` of the target's completion, with every key that the target needs."""
        ...


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Version(msgspec.Struct):
    version: str


class _Taken(NamedTuple):
    """What an engine has fetched from others, since it started or in one copy; None if not reported."""

    tokens: int | None
    bytes: int | None
    local: int = 0  # prompt tokens that it found in its own cache
    computed: int = 0


async def ask(
    stage: Stage,
    address: str,
    path: str,
    timeout_s: float,
    *,
    post: bytes | None = None,
    most_bytes: int = _SMALL_BYTES,
    access: Access = PLAIN,
) -> Answer:
    """One question to an engine. Raises TransferError for no answer in time and for any status but 200: `refused` if
    the engine rejects what was sent, `status` otherwise.
    """
    try:
        answer = await ask_once(address, path, timeout_s, most_bytes, post=post, access=access)
    except UnansweredError as error:
        raise TransferError(stage, error.reason) from None
    if answer.status in (400, 413, 422):
        raise TransferError(stage, "refused")
    if answer.status != 200:
        raise TransferError(stage, "status")
    return answer


async def _ask(
    stage: Stage,
    party: Party,
    path: str,
    timeout_s: float,
    *,
    post: bytes | None = None,
    most_bytes: int = _SMALL_BYTES,
) -> Answer:
    return await ask(stage, party.address, path, timeout_s, post=post, most_bytes=most_bytes, access=party.access)


async def tokenize(party: Party, body: bytes, timeout_s: float) -> list[int]:
    """The token ids of the prompt in `body`, a request to /tokenize."""
    answer = await _ask("tokenize", party, TOKENIZE, timeout_s, post=body, most_bytes=_MOST_TOKEN_BYTES)
    return _read("tokenize", answer.body, _Tokens).tokens


async def check_version(party: Party, timeout_s: float) -> None:
    """Raises TransferError if a failed transfer would hang the engine's request forever."""
    answer = await _ask("discover", party, "/version", timeout_s)
    if not transfers_safely(_read("discover", answer.body, _Version).version):
        raise TransferError("discover", "version")


async def complete(
    stage: Literal["export", "import"],
    party: Party,
    prompt: Prompt,
    params: Mapping[str, Any],
    timeout_s: float,
) -> Exported:
    """One completion of one token. Raises TransferError unless the engine processed exactly these tokens."""
    body = {
        "model": prompt.model,
        "prompt": prompt.ids,
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
        "stream": False,
        "kv_transfer_params": params,
    }
    if prompt.cache_salt:
        body["cache_salt"] = prompt.cache_salt
    answer = await _ask(stage, party, COMPLETIONS, timeout_s, post=msgspec.json.encode(body))
    completion = _read(stage, answer.body, OneTokenAnswer)
    if completion.usage.prompt_tokens != len(prompt.ids):
        raise TransferError(stage, "tokens")
    if not completion.is_of_one_token:
        raise TransferError(stage, "finish_reason")
    return Exported(completion.cached_tokens, completion.kv_transfer_params)


async def taken(party: Party, timeout_s: float) -> _Taken:
    """By the engine's own counters."""
    answer = await _ask("confirm", party, "/metrics", timeout_s, most_bytes=metrics_text.MOST_BYTES)
    page = answer.body
    return _Taken(_sum(_TOKENS, page), _sum(_BYTES, page), _sum(_LOCAL, page) or 0, _sum(_COMPUTED, page) or 0)


async def copy_kv(
    connector: Connector,
    source: Party,
    target: Party,
    prompt: Prompt,
    deadlines: Deadlines,
) -> Copied:
    """Copy the KV of a prompt. Raises TransferError; then the target may or may not hold it.

    At most one copy into the same target at a time: the check is the rise of a counter that all imports share, by about
    the prompt's size.
    """
    ids = prompt.ids
    seconds: dict[Stage, float] = {}
    with _timed(seconds, "discover"):
        await check_version(source, deadlines.discover_s)
        await check_version(target, deadlines.discover_s)
        discovered = await connector.discover(source, deadlines.discover_s)
        before = await taken(target, deadlines.discover_s)
    transfer_id = uuid4().hex
    with _timed(seconds, "export"):
        params = connector.to_export(transfer_id)
        exported = await complete("export", source, prompt, params, deadlines.export_s)
    with _timed(seconds, "import"):
        params = connector.to_import(transfer_id, source, discovered, exported)
        timeout_s = min(deadlines.import_s, connector.longest_import_s)
        imported = await complete("import", target, prompt, params, timeout_s)
    if exported.cached_tokens is not None and exported.cached_tokens < LEAST_CACHED_SHARE * len(ids):
        raise TransferError("export", "not_cached")
    with _timed(seconds, "confirm"):
        rise = await _rise(target, before, prompt, deadlines.confirm_s)
    if rise.tokens is None and (imported.cached_tokens or 0) < len(ids) - 2 * prompt.block_tokens:
        raise TransferError("confirm", "not_cached")
    return Copied(len(ids), rise.tokens, rise.bytes, seconds)


async def _rise(target: Party, before: _Taken, prompt: Prompt, timeout_s: float) -> _Taken:
    """How much the target fetched; raises TransferError if it is not the prompt, but for what it held already. The
    engine counts shortly after it has answered.

    Its counter is preferred to the `cached_tokens` in its answer, which are those it expected.
    """
    if before.tokens is None:
        return _Taken(None, None)
    until_s = time.monotonic() + timeout_s
    while True:
        after = await taken(target, timeout_s)
        tokens = (after.tokens or 0) - before.tokens
        if tokens > 0 and _is_the_prompt(tokens, after.local - before.local, after.computed - before.computed, prompt):
            rise_bytes = None if after.bytes is None or before.bytes is None else after.bytes - before.bytes
            return _Taken(tokens, rise_bytes or None)
        if time.monotonic() > until_s:
            raise TransferError("confirm", "too_little_came" if tokens > 0 else "nothing_came")
        await asyncio.sleep(_CONFIRM_EVERY_S)


def _is_the_prompt(tokens: int, local: int, computed: int, prompt: Prompt) -> bool:
    """Whether so many tokens transferred are the prompt: all of it but what the target found in its own cache.

    Other requests raise the counters too. If it computed too little to have computed this prompt, it found the rest of
    it in its cache, and if that is uncertain, it found what it was believed to hold at most.
    """
    size = len(prompt.ids)
    found = local if computed < _COMPUTED_SHARE * size else min(local, prompt.known_tokens)
    return tokens + found >= _LEAST_TAKEN_SHARE * size - 2 * prompt.block_tokens


@contextmanager
def _timed(seconds: dict[Stage, float], stage: Stage) -> Iterator[None]:
    began_s = time.monotonic()
    yield
    seconds[stage] = time.monotonic() - began_s


def _sum(series: re.Pattern[bytes], page: bytes) -> int | None:
    """Sum over the engines of one server; None if the page has no such series."""
    found = series.findall(b"\n" + page)
    return round(sum(map(float, found))) if found else None


_Answer = TypeVar("_Answer")


def _read(stage: Stage, body: bytes, kind: type[_Answer]) -> _Answer:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise TransferError(stage, "foreign") from None
