"""The listener: what a client's request passes through before it reaches an engine.

In order: client headers that only the gateway may set are removed, the sidecar sees headers and body and chooses, the
guard looks at what the sidecar has not read, and the router sends the request on, with retries (`routes`).
"""

from __future__ import annotations

from fairlead.api import headers
from fairlead.config import Config
from fairlead.gateway.guard import events, guard
from fairlead.gateway.parts import (
    CONNECTION_BUFFER_BYTES,
    MOST_HEADERS,
    SIDECAR_CLUSTER,
    Mode,
    Part,
    listen_on,
    seconds,
    type_url,
)
from fairlead.gateway.replies import openai_errors
from fairlead.gateway.routes import BUFFER, PROCESSOR, PROCESSOR_OF_UPGRADES, routes

_HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"

# The longest extension that the sidecar may ask for while it holds an answer back to judge it.
MOST_PROCESSOR_MS = 600_000

MOST_HEADERS_KIB = 96  # of a request


def listener(config: Config, mode: Mode) -> Part:
    return {
        "name": "clients",
        "address": listen_on("gateway.listen", config.gateway.listen),
        # With the default, a second Envoy on the same port starts without an error and takes half of the connections.
        "enable_reuse_port": False,
        "connection_balance_config": {"exact_balance": {}},  # one accepting socket, yet an even share for each worker
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
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
        "max_request_headers_kb": MOST_HEADERS_KIB,
        "normalize_path": True,
        "merge_slashes": True,  # a base URL that ends in a slash gives //v1/chat/completions
        # %2F in a path is part of a name (models are called org/name): engines decode it.
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
        "http_protocol_options": {"accept_http_10": True, "default_host_for_http_10": "localhost"},
        "request_headers_timeout": "10s",
        "stream_idle_timeout": "300s",  # while the request arrives; from then on the route's idle_timeout counts
        "common_http_protocol_options": {"idle_timeout": "3600s", "max_headers_count": MOST_HEADERS},
        "http2_protocol_options": {
            "max_concurrent_streams": 1024,
            # On HTTP/2 this is also the most that is buffered of one request.
            "initial_stream_window_size": max(65_535, config.gateway.max_body_bytes),
        },
        "early_header_mutation_extensions": [_remove_gateway_headers(config)],
        "local_reply_config": openai_errors(config.gateway.max_body_bytes, MOST_HEADERS, MOST_HEADERS_KIB),
        "route_config": routes(config, mode),
        "http_filters": [
            *_refuse_large_bodies(config, mode),
            *([events()] if config.cascades() else []),  # answers reach it after the processor
            _processor(config, mode),
            guard(config),
            _router(),
        ],
        # Realtime APIs: the other filters would wait for a body, and a WebSocket has none.
        "upgrade_configs": [
            {
                "upgrade_type": "websocket",
                "filters": [_processor(config, None), guard(config, upgrades=True), _router()],
            }
        ],
    }


def _client_identity() -> Part:
    return {
        "use_remote_address": True,
        "skip_xff_append": True,  # x-forwarded-for passes unchanged
        # No client is internal. An empty list would mean the private ranges and loopback; no client has this address.
        "internal_address_config": {"cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
    }


def _request_ids() -> Part:
    uuid = "envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig"
    return {
        "generate_request_id": True,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        # By default Envoy writes its trace decision into a client's request id.
        "request_id_extension": {"typed_config": {"@type": type_url(uuid), "pack_trace_reason": False}},
    }


def _remove_gateway_headers(config: Config) -> Part:
    """Before all filters, so that it holds when the sidecar is down."""
    name = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
    removed = [name.decode() for name in headers.GATEWAY_ONLY]
    if config.tenants.header is not None and config.tenants.vouched_by is None:
        removed.append(config.tenants.header.lower())  # a client could name any tenant, and so learn what it has cached
    removed += _unvouched_priorities(config)
    mutations: list[Part] = [{"remove": header} for header in removed]
    mutations.append({"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}})
    mutation = {"@type": type_url(name), "mutations": mutations}
    return {"name": "envoy.http.early_header_mutation.header_mutation", "typed_config": mutation}


def _unvouched_priorities(config: Config) -> list[str]:
    """Headers by which a client would choose its own place in the queue, or another model."""
    admission = config.admission
    if admission is None or admission.vouched_by is not None:
        return []
    return [name.decode() for name in (*headers.OBJECTIVE, *headers.FAIRNESS_ID, *headers.MODEL_REWRITE)]


def _refuse_large_bodies(config: Config, mode: Mode) -> list[Part]:
    """413 for a body over the limit, also when the sidecar is down and the body would only stream through.

    Full duplex has no such filter: it would hold back the body that the sidecar should see chunk by chunk.
    """
    if mode == "full_duplex":
        return []
    name = "envoy.extensions.filters.http.buffer.v3.Buffer"
    limit = {"@type": type_url(name), "max_request_bytes": config.gateway.max_body_bytes}
    return [{"name": BUFFER, "typed_config": limit}]


def _processor(config: Config, mode: Mode | None) -> Part:
    """`mode` None: the sidecar sees headers only."""
    processing_mode = {
        "request_header_mode": "SEND",
        "request_body_mode": "NONE" if mode is None else "BUFFERED",
        "request_trailer_mode": "SKIP",
        # Else Envoy's own answer to an unreadable request would wait for the sidecar forever.
        "response_header_mode": "SKIP",
        "response_body_mode": "NONE",
        "response_trailer_mode": "SEND",  # keeps the stream open until the answer has ended, without its chunks
    }
    filter_config: Part = {
        "@type": type_url("envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"),
        "stat_prefix": "fairlead",
        "grpc_service": {"envoy_grpc": {"cluster_name": SIDECAR_CLUSTER}, **_says_that_it_follows(config, mode)},
        "processing_mode": processing_mode,
        "allow_mode_override": True,
        "failure_mode_allow": config.clients is None,  # without the sidecar nobody knows who may ask
        "status_on_error": {"code": "ServiceUnavailable"},  # also where a body by chunks went down with the sidecar
        "message_timeout": seconds(config.gateway.processor_timeout_ms),
        "max_message_timeout": seconds(max(MOST_PROCESSOR_MS, config.gateway.processor_timeout_ms)),
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    }
    return {"name": PROCESSOR_OF_UPGRADES if mode is None else PROCESSOR, "typed_config": filter_config}


def _says_that_it_follows(config: Config, mode: Mode | None) -> Part:
    """A sidecar that is back gives an Envoy that follows no advice before it has the sidecar's endpoints.

    Not in full duplex: there the body does not wait for the sidecar. Nor where there are several sidecars: Envoy goes
    on following the one that has stayed, which sends it the same endpoints.
    """
    if config.gateway.endpoints != "eds" or mode == "full_duplex" or len(config.gateway.processors) > 1:
        return {}
    return {"initial_metadata": [{"key": headers.FOLLOWS.decode(), "value": "endpoints"}]}


def _router() -> Part:
    name = "envoy.extensions.filters.http.router.v3.Router"
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": type_url(name), "suppress_envoy_headers": True},
    }
