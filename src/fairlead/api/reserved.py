"""Parameters that only a router sets: by most it moves KV between engines, and a client that sent them could read or
poison another's cache; by `data_parallel_rank` and `routed_dp_rank` (SGLang) it chooses among one engine's copies. By
`mm_hashes` and `mm_content_hashes` (SGLang; the first in vLLM's `features`, too) a client's image would pass for
another one, whose cached KV is found by its hash. The last five go between the parts of one SGLang, or come from its
orchestrator ("never by an application client"). What names an image in a message is in `api.media_names`.

Sources: `kv_transfer_params` and `ec_transfer_params` of vLLM's requests; the others are of SGLang 0.5.23's
`GenerateReqInput`.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

RESERVED_KEYS: Final = frozenset(
    {
        "kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room",
        "bootstrap_pair_key", "decode_tp_size", "disagg_prefill_dp_rank", "data_parallel_rank", "routed_dp_rank",
        "mm_hashes", "mm_content_hashes", "kv_hints", "http_worker_ipc", "encoder_urls", "need_wait_for_mm_inputs",
        "num_items_assigned",
    }
)  # fmt: skip

_WRITTEN: Final = re.compile(
    rb"transfer_params|bootstrap_|decode_tp_size|_dp_rank|data_parallel_rank|mm_hashes|mm_content_hashes|kv_hints|http_worker_ipc"
    rb"|encoder_urls|need_wait_for_mm_inputs|num_items_assigned|\\u00"
)
_MOST_READ_BYTES: Final = 1 << 16
_UTF_16_OR_32: Final = re.compile(rb"\A[^\x00]{0,3}\x00")
_decode = msgspec.json.Decoder().decode


def may_carry(body: bytes) -> bool:
    """Whether a body that was not read could name a reserved parameter, in any escape or encoding that engines take."""
    return _WRITTEN.search(body) is not None or _UTF_16_OR_32.match(body) is not None


def carries(value: bytes) -> bool:
    """Whether a JSON object, or an object in it, has a reserved key. True where it is too long to tell."""
    if not may_carry(value):
        return False
    if len(value) > _MOST_READ_BYTES:
        return True
    try:
        return _names_reserved(_decode(value))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True


def _names_reserved(document: Any) -> bool:
    if not isinstance(document, dict):
        return False
    inner = (value for value in document.values() if isinstance(value, dict))
    return not RESERVED_KEYS.isdisjoint(document) or any(not RESERVED_KEYS.isdisjoint(value) for value in inner)
