"""The edge: a gRPC server for Envoy's external processing, on an HTTP/2 core of our own.

    bytes -> http2.Connection -> events -> grpc.Calls -> a method's receiver -> replies -> bytes

`http2` and `grpc` do no I/O and read no clock; `protocol` and `server` bring sockets, timers and TLS to them. Decision
0010 says why this is not a library.
"""
