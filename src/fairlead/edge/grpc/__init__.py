"""gRPC of a server, without I/O. Source: PROTOCOL-HTTP2.md of the gRPC project."""

from fairlead.edge.grpc.calls import Call, Calls, Method, Receiver, Services
from fairlead.edge.grpc.health import Health
from fairlead.edge.grpc.held import UnfinishedBytes
from fairlead.edge.grpc.status import Status, StatusError
from fairlead.edge.grpc.unary import server_streaming, unary

__all__ = [
    "Call",
    "Calls",
    "Health",
    "Method",
    "Receiver",
    "Services",
    "Status",
    "StatusError",
    "UnfinishedBytes",
    "server_streaming",
    "unary",
]
