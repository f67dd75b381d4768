"""What vLLM's NIXL connector needs: the source answers an export with the parameters for the target's import.

The source leases the blocks for 30 s; a later import reads whatever is there by then, unnoticed. So an import is
abandoned well before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead.engines.kv_transfer import Exported, Party, TransferError

_NEEDED: Final = ("remote_engine_id", "remote_request_id", "remote_block_ids", "remote_host", "remote_port")


class Nixl:
    """See `kv_transfer.Connector`. According to its source, vLLM 0.32 loads no KV if one of the keys is missing."""

    longest_import_s = 15.0

    async def discover(self, source: Party, within_s: float) -> str:  # noqa: ARG002
        return ""

    def to_export(self, transfer_id: str) -> Mapping[str, Any]:  # noqa: ARG002
        return {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }

    def to_import(self, transfer_id: str, source: Party, discovered: str, exported: Exported) -> Mapping[str, Any]:  # noqa: ARG002
        said = exported.kv_transfer_params or {}
        if not all(said.get(name) for name in _NEEDED):
            raise TransferError("export", "incomplete")
        return {**said, "do_remote_prefill": True, "do_remote_decode": False}
