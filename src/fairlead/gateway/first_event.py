"""A filter behind Envoy's router that holds a streamed answer until its first event is here: see `extproc.first_event`.

It is there only for requests that the sidecar has marked: of those that stream, to an engine that may be full.
"""

from __future__ import annotations

from fairlead.api.headers import FIRST_EVENT
from fairlead.config import Config
from fairlead.gateway.parts import SIDECAR_CLUSTER, Part, seconds, type_url

_MOST_MS = 3_600_000  # that the sidecar may ask for until an answer's first token


def first_event(config: Config) -> Part:
    processor = {
        "@type": type_url("envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"),
        "stat_prefix": "first_event",
        "grpc_service": {
            "envoy_grpc": {"cluster_name": SIDECAR_CLUSTER},
            "initial_metadata": [{"key": FIRST_EVENT.decode(), "value": "%UPSTREAM_HOST%"}],
        },
        "processing_mode": {
            "request_header_mode": "SKIP",
            "request_body_mode": "NONE",
            "request_trailer_mode": "SKIP",
            "response_header_mode": "SEND",
            "response_body_mode": "STREAMED",
            "response_trailer_mode": "SKIP",
        },
        "send_body_without_waiting_for_header_response": True,
        "failure_mode_allow": True,  # without the sidecar the answer is passed on as it is
        "message_timeout": seconds(config.gateway.processor_timeout_ms),
        "max_message_timeout": seconds(max(_MOST_MS, config.gateway.processor_timeout_ms)),
    }
    header = {
        "@type": type_url("envoy.type.matcher.v3.HttpRequestHeaderMatchInput"),
        "header_name": FIRST_EVENT.decode(),
    }
    is_marked = {"single_predicate": {"input": {"name": "mark", "typed_config": header}, "value_match": {"exact": "1"}}}
    skip = {"@type": type_url("envoy.extensions.filters.common.matcher.action.v3.SkipFilter")}
    otherwise = {"action": {"name": "skip", "typed_config": skip}}
    unmarked = {"predicate": {"not_matcher": is_marked}, "on_match": otherwise}
    return {
        "name": "fairlead.first_event",
        "typed_config": {
            "@type": type_url("envoy.extensions.common.matching.v3.ExtensionWithMatcher"),
            "extension_config": {"name": "envoy.filters.http.ext_proc", "typed_config": processor},
            "xds_matcher": {"matcher_list": {"matchers": [unmarked]}},
        },
    }
