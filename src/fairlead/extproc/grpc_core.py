"""How gRPC's C core accepts connections, told before it is loaded.

Without its newer listener (grpcio 1.85) a processor without logic uses some 50 µs of CPU less for a request, of 400,
and at 100 requests a second adds some 0.2 ms less to the median; the bench measures both. It is an *experiment* of
gRPC's, which later versions may no longer know: they say so once, when they start, and run as they do.
"""

from __future__ import annotations

import os
from typing import Final

EXPERIMENTS: Final = "-event_engine_listener"


def prefer_old_listener() -> None:
    """For this process, before it imports grpc; what the operator has set stays."""
    os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)
