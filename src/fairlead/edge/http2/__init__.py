"""HTTP/2 of a server, without I/O. Source: RFC 9113; RFC 7541 for header blocks."""

from fairlead.edge.http2.connection import Connection
from fairlead.edge.http2.events import Event, RequestData, RequestStarted, StreamEnded
from fairlead.edge.http2.frames import ErrorCode
from fairlead.edge.http2.headers import Request, header_block
from fairlead.edge.http2.limits import Limits

__all__ = [
    "Connection",
    "ErrorCode",
    "Event",
    "Limits",
    "Request",
    "RequestData",
    "RequestStarted",
    "StreamEnded",
    "header_block",
]
