"""Errors that Envoy makes itself, in OpenAI's shape: client libraries then show their message.

Answers of engines and of the sidecar pass unchanged: each case is recognised by an Envoy response flag or detail.
"""

from __future__ import annotations

from typing import Final

from fairlead.api import headers as names
from fairlead.gateway.parts import Part, type_url

# Answers already in that shape: the sidecar's, the guard's, and those of a route that leads nowhere.
_OURS: Final = "^(fairlead_|direct_response|lua_response)"

# Fallback sentences by status: Envoy's own text is a few words or nothing.
_BY_STATUS: Final = {
    400: "The request is not valid HTTP.",
    403: "Upgrades of this kind are not open to clients of this gateway.",
    404: "There is nothing at this path.",
    408: "The request took too long to arrive.",
    426: "This version of HTTP is not supported.",
    501: "This transfer encoding is not supported.",
}


def openai_errors(max_body_bytes: int, max_headers: int, max_headers_kib: int) -> Part:
    too_large = f"The request body is larger than {max_body_bytes} bytes, the limit of this gateway."
    headers = f"The request has more than {max_headers - 10} headers, or more than {max_headers_kib - 1} KiB of them."
    no_engine = "No engine could answer this request; try again."
    silent = "The engine was silent for too long."
    no_http = "The engine's answer is not valid HTTP; try again."
    no_sidecar = "Fairlead, which says where a request may go, did not answer; try again."
    no_memory = "The gateway is short of memory; try again."
    engine_headers = "The engine's answer has more headers than this gateway takes."
    return {
        "mappers": [
            {
                "filter": _details("== 'request_payload_too_large'"),
                "body_format_override": _envelope(too_large, "invalid_request_error", "request_too_large"),
            },
            {
                # An engine's many, and the sidecar's few on top: Envoy calls that a 500, as it does below.
                "filter": _details(".matches('header_mutation_result_exceeds') && has(upstream.address)"),
                "status_code": 502,
                "body_format_override": _envelope(engine_headers, "server_error", "engine_protocol_error"),
            },
            {
                # Envoy's own limit, or the sidecar's few headers on top of a client's many: Envoy calls that a 500.
                "filter": _details(
                    ".matches('header_mutation_result_exceeds|headers?_(too_large|count)|too_many_headers')"
                ),
                "status_code": 431,
                "body_format_override": _envelope(headers, "invalid_request_error", "headers_too_large"),
            },
            {
                "filter": _details(".matches('^ext_proc_error')"),
                "headers_to_add": [{"header": {"key": "retry-after", "value": "1"}}],
                "body_format_override": _envelope(no_sidecar, "server_error", "no_advice"),
            },
            {
                "filter": _details("== 'overload'"),
                "status_code": 503,  # over HTTP/1 Envoy calls it a 500
                "headers_to_add": [{"header": {"key": "retry-after", "value": "1"}}],
                "body_format_override": _envelope(no_memory, "server_error", "overloaded"),
            },
            {
                # No healthy host, overflow.
                "filter": {"response_flag_filter": {"flags": ["UH", "UO"]}},
                "headers_to_add": [{"header": {"key": "retry-after", "value": "1"}}],
                "body_format_override": _envelope(no_engine, "server_error", "no_engine"),
            },
            {
                # Connection failed, connection ended, reset. The sidecar must not take it for an engine's full queue.
                "filter": {"response_flag_filter": {"flags": ["UF", "UC", "UR"]}},
                "headers_to_add": [
                    {"header": {"key": "retry-after", "value": "1"}},
                    {"header": {"key": names.UNANSWERED.decode(), "value": "1"}},
                ],
                "body_format_override": _envelope(no_engine, "server_error", "no_engine"),
            },
            {
                "filter": {"response_flag_filter": {"flags": ["UPE"]}},
                "body_format_override": _envelope(no_http, "server_error", "engine_protocol_error"),
            },
            {
                "filter": {"response_flag_filter": {"flags": ["UT", "SI"]}},
                "body_format_override": _envelope(silent, "server_error", "engine_timeout"),
            },
            *(
                {
                    "filter": _both(_status(status), _details(f".matches('{_OURS}') == false")),
                    "body_format_override": _envelope(sentence, "invalid_request_error", "invalid_request"),
                }
                for status, sentence in _BY_STATUS.items()
            ),
            {
                "filter": _both(_status(431), _details(f".matches('{_OURS}') == false")),
                "body_format_override": _envelope(headers, "invalid_request_error", "headers_too_large"),
            },
        ]
    }


def _details(condition: str) -> Part:
    name = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    config = {"@type": type_url(name), "expression": f"response.code_details{condition}"}
    return {"extension_filter": {"name": "envoy.access_loggers.extension_filters.cel", "typed_config": config}}


def _status(status: int) -> Part:
    value = {"default_value": status, "runtime_key": f"fairlead.status_{status}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _both(one: Part, other: Part) -> Part:
    return {"and_filter": {"filters": [one, other]}}


def envelope(message: str, kind: str, code: str) -> Part:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _envelope(message: str, kind: str, code: str) -> Part:
    return {"json_format": envelope(message, kind, code)}
