"""The listener: what a client's request passes through before it reaches an engine.

In order: client headers that only the gateway may set are removed, the sidecar sees headers and body and chooses, and
the router sends the request on, with retries. Two routes make the difference between a chosen and a blind request.
"""

from __future__ import annotations

from fairlead.config import Config
from fairlead.gateway.parts import (
    DESTINATION,
    ENGINES_CLUSTER,
    SIDECAR_CLUSTER,
    Mode,
    Part,
    listen_on,
    seconds,
    type_url,
)
from fairlead.gateway.replies import openai_errors

_HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"

# Answers of the sidecar and its choices; a client that could set them could choose its engine. A client's
# x-session-id and x-fairlead-attempted-models are its own and stay.
GATEWAY_ONLY_HEADERS = (
    DESTINATION,
    f"{DESTINATION}-subset",
    "x-fairlead-model",
    "x-fairlead-endpoint",
    "x-fairlead-decision",
)

# A long answer that is not streamed is silent for minutes; a stream may pause while an engine is busy.
ENGINE_SILENCE_MS = 3_600_000

# The sidecar may ask for this long when it holds an answer back to judge it.
MOST_PROCESSOR_MS = 600_000

MOST_BLIND_RETRIES = 7


def listener(config: Config, mode: Mode) -> Part:
    return {
        "name": "clients",
        "address": listen_on("gateway.listen", config.gateway.listen),
        # With the default, a second Envoy on the same port starts without an error and takes half of the connections.
        "enable_reuse_port": False,
        "connection_balance_config": {"exact_balance": {}},  # one accepting socket, still an even share a worker
        "per_connection_buffer_limit_bytes": config.gateway.max_body_bytes,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": _connection_manager(config, mode),
                    }
                ]
            }
        ],
    }


def _connection_manager(config: Config, mode: Mode) -> Part:
    return {
        "@type": type_url(_HCM),
        "stat_prefix": "clients",
        "codec_type": "AUTO",
        **_client_identity(),
        **_request_ids(),
        "server_header_transformation": "PASS_THROUGH",
        "max_request_headers_kb": 96,
        "normalize_path": True,
        "merge_slashes": True,  # a base URL that ends in a slash gives //v1/chat/completions
        # %2F in a path is part of a name (models are called org/name): engines decide what it means.
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
        "request_headers_timeout": "10s",
        "stream_idle_timeout": "300s",  # while the request arrives; from then on the route's idle_timeout counts
        "common_http_protocol_options": {"idle_timeout": "3600s"},
        "http2_protocol_options": {
            "max_concurrent_streams": 1024,
            # On HTTP/2 this is also the most that is buffered of one request.
            "initial_stream_window_size": max(65_535, config.gateway.max_body_bytes),
        },
        "early_header_mutation_extensions": [_remove_gateway_headers()],
        "local_reply_config": openai_errors(config.gateway.max_body_bytes),
        "route_config": _routes(config),
        "http_filters": [*_refuse_large_bodies(config, mode), _processor(config, mode), _router()],
    }


def _client_identity() -> Part:
    return {
        "use_remote_address": True,
        "skip_xff_append": True,  # x-forwarded-for passes as the client or its proxy wrote it
        # No client is internal. An empty list would mean the private ranges and loopback; no client has this address.
        "internal_address_config": {"cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
    }


def _request_ids() -> Part:
    uuid = "envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig"
    return {
        "generate_request_id": True,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        # By default Envoy writes its trace decision into the id of a client.
        "request_id_extension": {"typed_config": {"@type": type_url(uuid), "pack_trace_reason": False}},
    }


def _remove_gateway_headers() -> Part:
    """Before all filters, so that it holds when the sidecar is down."""
    name = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
    mutations: list[Part] = [{"remove": header} for header in GATEWAY_ONLY_HEADERS]
    mutations.append({"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}})
    config = {"@type": type_url(name), "mutations": mutations}
    return {"name": "envoy.http.early_header_mutation.header_mutation", "typed_config": config}


def _refuse_large_bodies(config: Config, mode: Mode) -> list[Part]:
    """413 for a body over the limit, also when the sidecar is down and the body would only stream through.

    Full duplex has no such filter: it would hold the body back that the sidecar is to see chunk by chunk.
    """
    if mode == "full_duplex":
        return []
    name = "envoy.extensions.filters.http.buffer.v3.Buffer"
    limit = {"@type": type_url(name), "max_request_bytes": config.gateway.max_body_bytes}
    return [{"name": "envoy.filters.http.buffer", "typed_config": limit}]


def _processor(config: Config, mode: Mode) -> Part:
    full_duplex = mode == "full_duplex"
    processing_mode = {
        "request_header_mode": "SEND",
        "request_body_mode": "FULL_DUPLEX_STREAMED" if full_duplex else "BUFFERED",
        "request_trailer_mode": "SEND" if full_duplex else "SKIP",
        "response_header_mode": "SEND",
        "response_body_mode": "NONE",
        "response_trailer_mode": "SEND",  # keeps the stream open until the answer has ended, without its chunks
    }
    filter_config: Part = {
        "@type": type_url("envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"),
        "stat_prefix": "fairlead",
        "grpc_service": {"envoy_grpc": {"cluster_name": SIDECAR_CLUSTER}},
        "processing_mode": processing_mode,
        "failure_mode_allow": True,
        "message_timeout": seconds(config.gateway.processor_timeout_ms),
        "max_message_timeout": seconds(max(MOST_PROCESSOR_MS, config.gateway.processor_timeout_ms)),
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    }
    if not full_duplex:  # Envoy ignores overrides in full duplex
        filter_config["allow_mode_override"] = True
    return {"name": "envoy.filters.http.ext_proc", "typed_config": filter_config}


def _router() -> Part:
    name = "envoy.extensions.filters.http.router.v3.Router"
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": type_url(name), "suppress_envoy_headers": True},
    }


def _routes(config: Config) -> Part:
    chosen = {"prefix": "/", "headers": [{"name": DESTINATION, "present_match": True}]}
    blind_retries = min(len(config.pool.endpoints) - 1, MOST_BLIND_RETRIES)
    return {
        "name": "pool",
        "virtual_hosts": [
            {
                "name": "pool",
                "domains": ["*"],
                "request_body_buffer_limit": config.gateway.max_body_bytes,
                # Envoy adds it for every client that is not internal; engines have no use for it.
                "request_headers_to_remove": ["x-envoy-external-address"],
                "routes": [
                    _route("chosen", chosen, _retry_down_the_list(config.gateway.fallbacks)),
                    _route("blind", {"prefix": "/"}, _retry_elsewhere(blind_retries)),
                ],
            }
        ],
    }


def _route(name: str, match: Part, retry_policy: Part | None) -> Part:
    action: Part = {
        "cluster": ENGINES_CLUSTER,
        "timeout": "0s",  # the default of 15 s would end most long answers
        "idle_timeout": seconds(ENGINE_SILENCE_MS),
    }
    if retry_policy is not None:
        action["retry_policy"] = retry_policy
    return {"name": name, "match": match, "route": action}


_FAILURES = "5xx,reset,connect-failure,refused-stream"


def _retry_down_the_list(fallbacks: int) -> Part | None:
    """The sidecar's list names the next address, so that nothing has to be avoided here."""
    if fallbacks == 0:
        return None
    return {"retry_on": _FAILURES, "num_retries": fallbacks, "retry_back_off": _back_off(base_ms=25)}


def _retry_elsewhere(retries: int) -> Part | None:
    """A blind choice may hit an engine that does not serve the asked model: its 404 moves on, like a failure."""
    if retries == 0:
        return None
    previous_hosts = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return {
        "retry_on": f"{_FAILURES},retriable-status-codes",
        "retriable_status_codes": [404],
        "num_retries": retries,
        "retry_back_off": _back_off(base_ms=5),  # short, since each attempt goes to another engine
        "retry_host_predicate": [
            {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {"@type": type_url(previous_hosts)}}
        ],
        # Draws until a host comes up that was not tried. Where 7 of 8 were, 64 draws would miss it once in 5,000 times.
        "host_selection_retry_max_attempts": 256,
    }


def _back_off(base_ms: float) -> Part:
    return {"base_interval": seconds(base_ms), "max_interval": seconds(10 * base_ms)}
