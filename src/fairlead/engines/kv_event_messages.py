"""KV cache events as vLLM and SGLang publish them: three ZMQ frames in, events out; invalid frames are safe.

The frames are a topic, a sequence number (8 bytes, big endian) and a MessagePack batch. The batch and each event in it
are arrays (vLLM up to 0.22) or maps (vLLM from 0.25; SGLang's events); any mix is read, newer fields are skipped.
Nothing here keeps state: `engines.kv_events` handles order and loss, `engines.kv_blocks` what an engine holds.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

BlockHash = int | bytes
Token = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

SEQUENCE_BYTES: Final = 8
END_OF_REPLAY: Final = b"\xff" * SEQUENCE_BYTES


class BlockStored(msgspec.Struct, tag=True, array_like=True, gc=False):
    """Blocks that follow each other, and follow `parent_block_hash` (None: they start a prompt)."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[Token]
    block_size: Annotated[int, msgspec.Meta(gt=0)]
    lora_id: Any = None
    medium: Any = None
    lora_name: Any = None
    extra_keys: list[Any] | None = None  # for each block: what its content depends on besides tokens
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: Any = None  # SGLang; vLLM has it among `extra_keys`


class BlockRemoved(msgspec.Struct, tag=True, array_like=True, gc=False):
    """One physical copy of each block is gone, from the tier `medium`."""

    block_hashes: list[BlockHash]
    medium: Any = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, array_like=True, gc=False):
    """The engine dropped its whole cache."""


class _StoredMap(BlockStored, tag="BlockStored", array_like=False):
    pass


class _RemovedMap(BlockRemoved, tag="BlockRemoved", array_like=False):
    pass


class _ClearedMap(AllBlocksCleared, tag="AllBlocksCleared", array_like=False):
    pass


class _BatchArray(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]


class _BatchMap(msgspec.Struct, gc=False):
    ts: float
    events: list[msgspec.Raw]


Event = BlockStored | BlockRemoved | AllBlocksCleared

_REMOVING: Final = frozenset({"BlockRemoved", "AllBlocksCleared"})
_decode_batch_array: Final = msgspec.msgpack.Decoder(_BatchArray).decode
_decode_batch_map: Final = msgspec.msgpack.Decoder(_BatchMap).decode
_decode_event_array: Final = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared).decode
_decode_event_map: Final = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap).decode


class Batch(msgspec.Struct, frozen=True, gc=False):
    """What an engine did in one step."""

    engine_s: float  # by the engine's clock
    events: tuple[Event, ...]
    skipped_events: int  # unknown kinds, and unreadable stores: harmless, as less is known and nothing wrong


def read_sequence(frame: bytes) -> int | None:
    """The sequence number of a message; None if the frame is invalid."""
    return int.from_bytes(frame, "big") if len(frame) == SEQUENCE_BYTES and frame != END_OF_REPLAY else None


def read_batch(payload: bytes) -> Batch | None:
    """The batch in `payload`; None if it cannot be read, so that it may hide a removal."""
    try:
        batch = _decode_batch_map(payload) if _is_map(payload) else _decode_batch_array(payload)
        read = [_read_event(bytes(raw)) for raw in batch.events]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if batch.ts != batch.ts:
        return None
    events = tuple(event for event in read if event is not None)
    return Batch(batch.ts, events, len(read) - len(events))


def _read_event(raw: bytes) -> Event | None:
    """The event; None for one that may be skipped: to know less of what is held is safe, to miss a removal is not."""
    try:
        event: Event = _decode_event_map(raw) if _is_map(raw) else _decode_event_array(raw)
        return event
    except msgspec.ValidationError:
        kind = _kind(msgspec.msgpack.decode(raw))
        if kind is None or kind in _REMOVING:
            raise
        return None


def _kind(event: Any) -> str | None:
    kind = event.get("type") if isinstance(event, dict) else event[0] if isinstance(event, list) and event else None
    return kind if isinstance(kind, str) else None


def _is_map(packed: bytes) -> bool:
    first = packed[0] if packed else 0
    return first & 0xF0 == 0x80 or first in (0xDE, 0xDF)
