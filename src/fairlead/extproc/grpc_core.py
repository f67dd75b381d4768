"""How gRPC's C core accepts connections, set before it is loaded.

Without its newer listener (grpcio 1.85) a processor without logic uses some 50 of 400 µs of CPU less for a request,
and at 100 requests a second adds some 0.2 ms less to the median; the bench measures both. It is an *experiment* of
gRPC's, which later versions may no longer know: they then log it once, at the start, and use their default.
"""

from __future__ import annotations

import os
from typing import Final

EXPERIMENTS: Final = "-event_engine_listener"


def prefer_old_listener() -> None:
    """For this process, before it imports grpc; what the operator has set stays."""
    os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)
