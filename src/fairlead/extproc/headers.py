"""HTTP headers and metadata as Envoy sends them, read out of its messages. Names are in `api.headers`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final

from fairlead.api.headers import (
    API_KEY,
    ATTEMPTED_MODELS,
    CONTEXT_REUSE,
    NOT_FOR_ENGINES,
    QUESTION_ID,
    REQUEST_ID,
    SERVED,
    SUBSET,
    TASK,
    TEST_SELECTION,
    UNANSWERED,
    UPGRADE,
)
from fairlead.cascade.escalation import PASSED_ON
from fairlead.extproc.pb.ext_proc_pb2 import HeaderMap, ProcessingRequest

_SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
_SUBSET_KEY: Final = SUBSET.decode()
_SERVED_NAMESPACE: Final = "envoy.lb"
_SERVED_KEY: Final = SERVED.decode()
_STATUS_DIGITS: Final = 3
_REQUEST: Final = NOT_FOR_ENGINES.union(
    (
        b":method",
        b":path",
        b"content-type",
        REQUEST_ID,
        ATTEMPTED_MODELS,
        QUESTION_ID,
        CONTEXT_REUSE,
        TASK,
        TEST_SELECTION,
        API_KEY,
        UPGRADE,
    ),
    (name.encode() for name in PASSED_ON),
)

Headers = dict[bytes, bytes]


def read(header_map: HeaderMap, wanted: Collection[bytes]) -> Headers:
    """The values of the `wanted` names, in lower case; those of a repeated header are joined by commas.

    Reading a name or a value copies it, some 0.4 us each, and most headers of a request are of no use here.
    """
    headers: Headers = {}
    for header in header_map.headers:
        key = header.key
        if key in wanted:
            value = header.raw_value or header.value  # Envoy fills raw_value, some other clients value
            headers[key] = headers[key] + b"," + value if key in headers else value
    return headers


@lru_cache(maxsize=8)
def wanted_of_request(
    session_headers: tuple[bytes, ...], tenant_header: bytes, *others: tuple[bytes, ...]
) -> frozenset[bytes]:
    """The names that Fairlead reads of a request: session, tenant, place in the queue, what cascades pass on."""
    return _REQUEST | {*session_headers, tenant_header, *(name for names in others for name in names)}


def status_and_type(header_map: HeaderMap) -> tuple[int, bytes]:
    """The response's status code, 0 if it has none that HTTP knows, and its content type."""
    code, content_type = 0, b""
    for header in header_map.headers:
        key = header.key
        if key == b":status":
            value = header.raw_value or header.value
            code = int(value) if len(value) == _STATUS_DIGITS and value.isdigit() else 0
        elif key == b"content-type":
            content_type = header.raw_value or header.value
        if code and content_type:
            break
    return code, content_type


def is_unanswered(header_map: HeaderMap) -> bool:
    """Whether the response is Envoy's own, as the engine's connection failed or ended before an answer."""
    return any(header.key == UNANSWERED for header in header_map.headers)


def forbidden_in(headers: Headers) -> list[str]:
    """Names of headers that must not reach an engine: only a gateway may set them, or they are read here alone."""
    return (
        []
        if NOT_FOR_ENGINES.isdisjoint(headers)
        else sorted(name.decode() for name in NOT_FOR_ENGINES & headers.keys())
    )


def subset_hint(request: ProcessingRequest) -> Collection[str] | None:
    """The endpoints that the gateway allows (endpoint-picker protocol); None where it gave no hint.

    A hint that is there but empty, or that is not a list of addresses, allows none.
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


def test_selection(headers: Headers, addresses: Iterable[str]) -> Collection[str] | None:
    """Those of `addresses` that a conformance test names, by IP address or with the port; None where it names none."""
    value = headers.get(TEST_SELECTION)
    if value is None:
        return None
    named = {part.strip() for part in value.decode("latin-1").split(",")}
    return frozenset(
        address for address in addresses if address in named or address.rpartition(":")[0].strip("[]") in named
    )


def served_address(response: ProcessingRequest) -> str | None:
    """The endpoint that served in the end, after Envoy's retries, where Envoy reports it."""
    if not response.HasField("metadata_context"):
        return None
    namespaces = response.metadata_context.filter_metadata
    if _SERVED_NAMESPACE not in namespaces:
        return None
    fields = namespaces[_SERVED_NAMESPACE].fields
    return fields[_SERVED_KEY].string_value if _SERVED_KEY in fields else None
