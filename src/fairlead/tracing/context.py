"""What a request says of its trace, by the W3C's Trace Context: `traceparent: 00-{trace}-{parent span}-{flags}`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_SAMPLED: Final = 1


class TraceContext(NamedTuple):
    trace_id: bytes  # 16 bytes
    span_id: bytes  # 8 bytes: the parent of what we add
    sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{_SAMPLED if self.sampled else 0:02x}"


def read_traceparent(value: bytes) -> TraceContext | None:
    """None where there is none, or one that the standard says to ignore."""
    found = _TRACEPARENT.fullmatch(value[:256])
    if found is None or (value.startswith(b"00") and found[4] is not None):
        return None
    trace_id, span_id, flags = (bytes.fromhex(part.decode()) for part in found.groups()[:3])
    return TraceContext(trace_id, span_id, bool(flags[0] & _SAMPLED))
