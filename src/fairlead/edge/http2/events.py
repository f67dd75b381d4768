"""What a connection reports to whoever serves its requests."""

from __future__ import annotations

import msgspec

from fairlead.edge.http2.headers import Request
from fairlead.edge.http2.streams import Stream


class RequestStarted(msgspec.Struct, gc=False):
    """HEADERS of a new stream."""

    stream: Stream
    request: Request
    ended: bool


class RequestData(msgspec.Struct, gc=False):
    """DATA, without its padding. With `ended` the peer has sent all; `data` may then be empty."""

    stream: Stream
    data: bytes
    ended: bool


class StreamEnded(msgspec.Struct, gc=False):
    """The stream was reset, by the peer or for a fault of the peer's; nothing can be sent on it any more."""

    stream: Stream


Event = RequestStarted | RequestData | StreamEnded
