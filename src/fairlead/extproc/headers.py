"""HTTP headers as Envoy sends them, and which of them Fairlead reads, sets and never believes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fairlead.extproc.pb.ext_proc_pb2 import HeaderMap, ProcessingRequest

DESTINATION: Final = b"x-gateway-destination-endpoint"
REQUEST_ID: Final = b"x-request-id"
ATTEMPTED_MODELS: Final = b"x-fairlead-attempted-models"
MODEL: Final = b"x-fairlead-model"
ENDPOINT: Final = b"x-fairlead-endpoint"
DECISION: Final = b"x-fairlead-decision"
CASCADE_STAGE: Final = b"x-fairlead-cascade-stage"
CASCADE_SCORES: Final = b"x-fairlead-cascade-scores"
CASCADE_ADDED_MS: Final = b"x-fairlead-cascade-added-ms"
INNER: Final = b"x-fairlead-inner"  # with our secret: a cascade's own request to a larger model
CONTEXT_REUSE: Final = b"x-fairlead-context-reuse"

_SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
_SUBSET_KEY: Final = "x-gateway-destination-endpoint-subset"
_SERVED_NAMESPACE: Final = "envoy.lb"
_SERVED_KEY: Final = "x-gateway-destination-endpoint-served"

# What a client may not say: the answers are ours, and an ORIGINAL_DST cluster would follow the last one anywhere.
_FORBIDDEN: Final = frozenset({MODEL, ENDPOINT, DECISION, INNER, _SUBSET_KEY.encode(), b"x-envoy-original-dst-host"})

Headers = dict[bytes, bytes]


def read(header_map: HeaderMap) -> Headers:
    """Header names, in lower case, to values; values of a repeated header are joined by commas."""
    # Envoy fills raw_value, some other clients value.
    headers = {header.key: header.raw_value or header.value for header in header_map.headers}
    if len(headers) == len(header_map.headers):
        return headers
    headers.clear()
    for header in header_map.headers:
        key, value = header.key, header.raw_value or header.value
        headers[key] = headers[key] + b"," + value if key in headers else value
    return headers


def status_and_type(header_map: HeaderMap) -> tuple[int, bytes]:
    """The response's status code, 0 if it has none, and its content type."""
    code, content_type = 0, b""
    for header in header_map.headers:
        key = header.key
        if key == b":status":
            value = header.raw_value or header.value
            code = int(value) if value.isdigit() else 0
        elif key == b"content-type":
            content_type = header.raw_value or header.value
    return code, content_type


def forbidden_in(headers: Headers) -> list[str]:
    """Names of headers that must not reach an engine because a client sent them."""
    return [] if _FORBIDDEN.isdisjoint(headers) else sorted(name.decode() for name in _FORBIDDEN & headers.keys())


def subset_hint(request: ProcessingRequest) -> Collection[str] | None:
    """The endpoints that the gateway allows (endpoint-picker protocol); None where it gave no hint.

    A hint that is there but empty, or that is no list of addresses, allows none.
    """
    if not request.HasField("metadata_context"):
        return None
    namespaces = request.metadata_context.filter_metadata
    if _SUBSET_NAMESPACE not in namespaces or _SUBSET_KEY not in namespaces[_SUBSET_NAMESPACE].fields:
        return None
    hint = namespaces[_SUBSET_NAMESPACE].fields[_SUBSET_KEY]
    if hint.HasField("string_value"):
        return frozenset(part.strip() for part in hint.string_value.split(",") if part.strip())
    return frozenset(value.string_value for value in hint.list_value.values)


def served_address(response: ProcessingRequest) -> str | None:
    """The endpoint that really served, after Envoy's retries, where Envoy tells it."""
    if not response.HasField("metadata_context"):
        return None
    namespaces = response.metadata_context.filter_metadata
    if _SERVED_NAMESPACE not in namespaces:
        return None
    fields = namespaces[_SERVED_NAMESPACE].fields
    return fields[_SERVED_KEY].string_value if _SERVED_KEY in fields else None
