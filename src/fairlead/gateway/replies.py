"""Errors that Envoy makes itself, in OpenAI's shape: client libraries then show their message.

Answers of engines and of the sidecar pass unchanged: each case is told by a response flag or detail that only Envoy
sets.
"""

from __future__ import annotations

from fairlead.gateway.parts import Part, type_url


def openai_errors(max_body_bytes: int) -> Part:
    too_large = f"The request body is larger than {max_body_bytes} bytes, the limit of this gateway."
    no_engine = "No engine could answer this request; try again."
    silent = "The engine was silent for too long."
    return {
        "mappers": [
            {
                "filter": _details("request_payload_too_large"),
                "body_format_override": _envelope(too_large, "invalid_request_error", "request_too_large"),
            },
            {
                # No healthy host, connection failed, connection ended, reset, overflow.
                "filter": {"response_flag_filter": {"flags": ["UH", "UF", "UC", "UR", "UO"]}},
                "headers_to_add": [{"header": {"key": "retry-after", "value": "1"}}],
                "body_format_override": _envelope(no_engine, "server_error", "no_engine"),
            },
            {
                "filter": {"response_flag_filter": {"flags": ["UT", "SI"]}},
                "body_format_override": _envelope(silent, "server_error", "engine_timeout"),
            },
        ]
    }


def _details(details: str) -> Part:
    name = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    config = {"@type": type_url(name), "expression": f"response.code_details == '{details}'"}
    return {"extension_filter": {"name": "envoy.access_loggers.extension_filters.cel", "typed_config": config}}


def _envelope(message: str, kind: str, code: str) -> Part:
    return {"json_format": {"error": {"message": message, "type": kind, "param": None, "code": code}}}
