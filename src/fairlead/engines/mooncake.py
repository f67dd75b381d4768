"""What vLLM's Mooncake connector needs: a name for each transfer, and where to find the source's engine.

The three keys of an import are checked before they are sent: with one of them missing, vLLM 0.32 waits forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.engines.kv_transfer import Exported, Party, TransferError, ask


class _Rank(msgspec.Struct):
    engine_id: str


class Mooncake:
    """See `kv_transfer.Connector`. The engine's id changes at each start, so it is asked for at each transfer."""

    longest_import_s = 600.0  # the source keeps an export for VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, 480 s by default

    async def discover(self, source: Party, within_s: float) -> str:
        """The id of the source's engine. With several data-parallel ranks it is unknown which one holds the prompt."""
        if not source.bootstrap:
            raise TransferError("discover", "no_bootstrap")
        answer = await ask("discover", source.bootstrap, "/query", within_s)
        try:
            ranks = msgspec.json.decode(answer.body, type=dict[str, _Rank])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise TransferError("discover", "foreign") from None
        if len(ranks) != 1:
            raise TransferError("discover", "ranks")
        engine_id = next(iter(ranks.values())).engine_id
        if not engine_id:
            raise TransferError("discover", "foreign")
        return engine_id

    def to_export(self, transfer_id: str) -> Mapping[str, Any]:
        return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}

    def to_import(self, transfer_id: str, source: Party, discovered: str, exported: Exported) -> Mapping[str, Any]:  # noqa: ARG002
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": transfer_id,
            "remote_engine_id": discovered,
            "remote_bootstrap_addr": f"http://{source.bootstrap}",
        }
