"""What an engine last said of itself; the router's own counts are in the ledger.

None is unknown, which is not 0: an engine may not export a value, may be idle (an idle vLLM does not refresh its
gauges), or may never have been read.
"""

from __future__ import annotations

import msgspec


class EngineReport(msgspec.Struct, frozen=True, gc=False):
    """One reading of an engine's metrics."""

    read_at_s: float = 0.0  # on the clock of the reader; 0 is never
    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_usage: float | None = None  # 0 to 1; blocks that are cached but unreferenced count as free
    kv_capacity_tokens: int | None = None
    block_size: int | None = None
    prefix_query_tokens: int | None = None  # counters since the engine started
    prefix_hit_tokens: int | None = None


UNKNOWN = EngineReport()
