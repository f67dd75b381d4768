"""What an operator may ask of the edge, at one moment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class EdgeStatistics(msgspec.Struct, frozen=True):
    """Counts are since the start of the server."""

    open_connections: int
    refused_connections: int  # too many were open, or the server was draining
    refused_streams: int  # beyond `Limits.concurrent_streams`; the client may open another connection
    faults: Mapping[str, int]  # connections that we closed, by HTTP/2 error code; `stalled`: the peer stopped reading
    unfinished_bytes: int  # of messages whose rest has not come
