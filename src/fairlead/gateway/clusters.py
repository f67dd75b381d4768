"""The two clusters: the pool of engines, and the sidecar that chooses among them."""

from __future__ import annotations

from fairlead.config import Config
from fairlead.gateway.parts import (
    DESTINATION,
    ENGINES_CLUSTER,
    MOST_BODY_BYTES,
    SIDECAR_CLUSTER,
    Part,
    discovery,
    endpoints,
    seconds,
    type_url,
)

_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_POLICIES = "envoy.extensions.load_balancing_policies"

# Uvicorn, the HTTP server of vLLM and SGLang, closes a connection after 5 s without a request (its default). Envoy must
# close first: a request sent at the moment the engine closes is lost.
ENGINE_IDLE_MS = 4000

CONNECT_TIMEOUT_MS = 1000


def engines_cluster(config: Config) -> Part:
    addresses = [endpoint.address for endpoint in config.pool.endpoints]
    return {
        "name": ENGINES_CLUSTER,
        **discovery(addresses),
        "connect_timeout": seconds(CONNECT_TIMEOUT_MS),
        "per_connection_buffer_limit_bytes": config.gateway.max_body_bytes,
        "load_assignment": endpoints(ENGINES_CLUSTER, addresses),
        "load_balancing_policy": _chosen_first_then_least_requests(),
        # Unhealthy engines are tried only when less than 1 % are healthy: none, in most pools. The default, 50 %, would
        # send requests to dead engines as soon as half the pool is down; Envoy rounds, and takes 0 as never.
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "health_checks": [
            {
                "http_health_check": {"path": "/health"},
                "timeout": seconds(2000),
                "interval": seconds(2000),
                "no_traffic_interval": seconds(2000),  # default 60 s: an idle pool would not notice a new engine
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
            }
        ],
        "circuit_breakers": _circuit_breakers(),
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_probes": 3, "keepalive_time": 30, "keepalive_interval": 5}
        },
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: {
                "@type": type_url(_HTTP_OPTIONS),
                "common_http_protocol_options": {"idle_timeout": seconds(ENGINE_IDLE_MS)},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
    }


def sidecar_cluster(config: Config) -> Part:
    address = config.listen.grpc
    return {
        "name": SIDECAR_CLUSTER,
        **discovery([address]),
        "connect_timeout": seconds(250),
        "per_connection_buffer_limit_bytes": config.gateway.max_body_bytes,
        "load_assignment": endpoints(SIDECAR_CLUSTER, [address]),
        # With 0 an unhealthy sidecar is not called at all, so that requests go on to the engines at once.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [
            {
                "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
                "timeout": seconds(1000),
                "interval": seconds(1000),
                "no_traffic_interval": seconds(1000),
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
            }
        ],
        "circuit_breakers": _circuit_breakers(),
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: {
                "@type": type_url(_HTTP_OPTIONS),
                "explicit_http_config": {
                    "http2_protocol_options": {
                        # A whole body goes to the sidecar in one message; small windows cost a round trip each.
                        "initial_stream_window_size": _window(config.gateway.max_body_bytes),
                        "initial_connection_window_size": MOST_BODY_BYTES,
                    }
                },
            }
        },
    }


def _chosen_first_then_least_requests() -> Part:
    least_request = {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {"@type": type_url(f"{_POLICIES}.least_request.v3.LeastRequest"), "choice_count": 2},
    }
    override_host = {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": type_url(f"{_POLICIES}.override_host.v3.OverrideHost"),
            "override_host_sources": [{"header": DESTINATION}],
            # The sidecar reads from here which address of its list has answered.
            "selected_host_key": {"key": "envoy.lb", "path": [{"key": f"{DESTINATION}-served"}]},
            "fallback_policy": {"policies": [{"typed_extension_config": least_request}]},
        },
    }
    return {"policies": [{"typed_extension_config": override_host}]}


def _circuit_breakers() -> Part:
    # The defaults (1,024 requests, 3 retries) are reached by one busy pool: every request past them is a 500 or 503.
    # The engines queue by themselves, and the sidecar sheds load by what it knows.
    most = 1_000_000
    limits = {"max_connections": most, "max_pending_requests": most, "max_requests": most, "max_retries": most}
    return {"thresholds": [limits]}


def _window(max_body_bytes: int) -> int:
    return max(65_535, max_body_bytes)  # HTTP/2 allows no smaller window
