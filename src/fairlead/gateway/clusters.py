"""The clusters: all engines, the sidecars that choose among them, and each model's engines if no sidecar answers."""

from __future__ import annotations

from pathlib import Path

from fairlead.api.paths import MODELS
from fairlead.config import Config
from fairlead.dialects import dialect_called
from fairlead.gateway.first_event import first_event
from fairlead.gateway.guard import models_of_blind_routes, name_the_model
from fairlead.gateway.hosts import listed_hosts, lists_engines, present_hosts, remembered_hosts
from fairlead.gateway.parts import (
    BLIND_CLUSTER,
    CONNECTION_BUFFER_BYTES,
    DESTINATION,
    ENGINES_CLUSTER,
    MOST_BODY_BYTES,
    MOST_HEADERS,
    SIDECAR_CLUSTER,
    Mode,
    Part,
    codec,
    discovery,
    endpoints,
    seconds,
    type_url,
)
from fairlead.gateway.reached import LISTED, filters, sockets

_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_POLICIES = "envoy.extensions.load_balancing_policies"

# Uvicorn, the HTTP server of vLLM and SGLang, closes a connection after 5 s without a request (its default). Envoy must
# close first: a request sent at the moment the engine closes is lost.
ENGINE_IDLE_MS = 4000

CONNECT_TIMEOUT_MS = 1000


def engines_cluster(config: Config) -> Part:
    """All engines: the sidecar's choice, or else the engine with the fewest requests."""
    return _engines(config, ENGINES_CLUSTER, None, present_hosts(config, ENGINES_CLUSTER, None), advised=True)


def blind_clusters(config: Config) -> list[Part]:
    """For requests without advice: each model's engines, each route's models, and any engine.

    The first that has a healthy engine serves. Last come the engines that the last sidecar knew, and those that the
    configuration lists: an Envoy that starts while the sidecar is away has no others.
    """
    models = models_of_blind_routes(config)
    own = {served[0]: name for name, served in models.items() if name.startswith("model:")}
    clusters: list[Part] = []
    firsts: dict[str, str] = {}
    lasts: dict[str, list[Part]] = {}
    for model, name in own.items():
        lasts[model] = _last_resorts(config, name, model)
        firsts[model] = f"followed:{name}" if lasts[model] else name
        clusters.append(_engines(config, firsts[model], model, present_hosts(config, name, model)))
    clusters += [last for of_model in lasts.values() for last in of_model]
    for name, served in models.items():
        found = [firsts[model] for model in served]
        found += [last["name"] for model in served for last in lasts[model]]
        if found != [name]:
            clusters.append(_first_healthy(config, name, found, [] if name in own.values() else name_the_model()))
    if of_all := _last_resorts(config, ENGINES_CLUSTER, None):
        found = [ENGINES_CLUSTER, *(last["name"] for last in of_all)]
        clusters += [*of_all, _first_healthy(config, BLIND_CLUSTER, found, [])]
    return clusters


def has_last_resorts(config: Config) -> bool:
    """Whether Envoy has engines of its own, besides those that the sidecar sends."""
    return config.gateway.remember is not None or lists_engines(config, None)


def _last_resorts(config: Config, name: str, model: str | None) -> list[Part]:
    """Of the cluster `name`: what an Envoy has that starts while the sidecar is away."""
    found = []
    if config.gateway.remember is not None:
        hosts = remembered_hosts(Path(config.gateway.remember), name)
        found.append(_engines(config, f"remembered:{name}", model, hosts))
    if lists_engines(config, model):
        own_name = f"listed:{name}"
        found.append(_engines(config, own_name, model, listed_hosts(config, own_name, model)))
    return found


def _first_healthy(config: Config, name: str, clusters: list[str], naming: list[Part]) -> Part:
    """`naming`: filters that name the model of an attempt, where the clusters are of several."""
    aggregate = "envoy.extensions.clusters.aggregate.v3.ClusterConfig"
    options: Part = {"@type": type_url(_HTTP_OPTIONS), "explicit_http_config": {"http_protocol_options": {}}}
    if added := [*filters(config), *naming]:
        options["http_filters"] = [*added, codec()]
    return {
        "name": name,
        "connect_timeout": seconds(CONNECT_TIMEOUT_MS),
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.aggregate",
            "typed_config": {"@type": type_url(aggregate), "clusters": clusters},
        },
        "circuit_breakers": _circuit_breakers(),
        "typed_extension_protocol_options": {_HTTP_OPTIONS: options},
    }


def _health_path(config: Config, model: str | None) -> str:
    """The page that the sidecar probes too. A cluster has one: for several kinds of engines it is what all answer."""
    engines = {each.engine for each in config.pool.endpoints if model is None or each.model == model}
    paths = {dialect_called(engine).health_path for engine in engines}
    return paths.pop() if len(paths) == 1 and config.gateway.endpoints != "eds" else MODELS


def _engines(config: Config, name: str, model: str | None, hosts: Part, *, advised: bool = False) -> Part:
    """`model`: whose engines these are; None: all. `hosts`: where they come from. `advised`: a sidecar may choose."""
    adding_keys = [*([first_event(config)] if advised else []), *filters(config)]
    policy = _least_requests() if model is not None else _of_the_asked_model(_least_requests())
    policy = _chosen_first(policy) if advised else policy
    return {
        "name": name,
        **hosts,
        **sockets(config),
        "connect_timeout": seconds(CONNECT_TIMEOUT_MS),
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        # Unhealthy engines are tried only when less than 1 % are healthy: none, in most pools. The default, 50 %, would
        # send requests to dead engines as soon as half the pool is down; Envoy rounds, and takes 0 as never.
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "health_checks": [
            {
                "http_health_check": {
                    "path": _health_path(config, model),
                    "expected_statuses": [{"start": 200, "end": 500}],  # as the sidecar: whoever answers is there
                },
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
                "common_http_protocol_options": {
                    "idle_timeout": seconds(ENGINE_IDLE_MS),
                    "max_headers_count": MOST_HEADERS,
                },
                "explicit_http_config": {"http_protocol_options": {}},
                **({"http_filters": [*adding_keys, codec()]} if adding_keys else {}),
            }
        },
    }


def sidecar_cluster(config: Config, mode: Mode) -> Part:
    """The sidecars in the order in which they are asked: the first that is healthy decides about all requests."""
    addresses = list(config.gateway.processors) or [config.listen.grpc]
    assignment = endpoints(SIDECAR_CLUSTER, addresses[:1])
    for priority, address in enumerate(addresses[1:], 1):
        (locality,) = endpoints(SIDECAR_CLUSTER, [address])["endpoints"]
        assignment["endpoints"].append(locality | {"priority": priority})
    several = len(addresses) > 1
    cluster: Part = {
        "name": SIDECAR_CLUSTER,
        **discovery(addresses),
        "connect_timeout": seconds(250),
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "load_assignment": assignment,
        # With 0 an unhealthy sidecar is not called at all, so that requests go on to the engines at once.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [
            {
                "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
                "timeout": seconds(1000),
                "interval": seconds(1000),
                "no_traffic_interval": seconds(1000),
                "unhealthy_interval": seconds(250),  # of one that is back, the sooner the better
                "unhealthy_threshold": 1 if several else 2,  # asking another one costs little
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
                        # A sidecar that hangs, or whose machine is gone, closes no connection. What waits on one, a
                        # body in full duplex and the stream of endpoints, would wait for hours.
                        "connection_keepalive": {"interval": seconds(10_000), "timeout": seconds(10_000)},
                    }
                },
            }
        },
    }
    if several or mode == "full_duplex":
        # A refused connection between two health checks sends the next requests to the other sidecar at once, or on
        # without one: in full duplex Envoy fails a request whose body was on its way to a sidecar that is gone.
        cluster["outlier_detection"] = {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "interval": seconds(500),
            "base_ejection_time": seconds(3000),  # by then its health check has failed, too
            "max_ejection_time": seconds(3000),
            "max_ejection_percent": 100,
        }
    return cluster


def _least_requests() -> Part:
    return {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {"@type": type_url(f"{_POLICIES}.least_request.v3.LeastRequest"), "choice_count": 2},
    }


def _of_the_asked_model(policy: Part) -> Part:
    """Among the engines that list the model which `guard.lua` found in the request, if there are any; else among all.

    A model that only discovery knows has no cluster of its own: Envoy cannot be sent one with its endpoints.
    """
    return {
        "name": "envoy.load_balancing_policies.subset",
        "typed_config": {
            "@type": type_url(f"{_POLICIES}.subset.v3.Subset"),
            "fallback_policy": "ANY_ENDPOINT",
            "subset_selectors": [{"keys": [LISTED]}],
            "list_as_any": True,
            "subset_lb_policy": {"policies": [{"typed_extension_config": policy}]},
        },
    }


def _chosen_first(fallback: Part) -> Part:
    return {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": type_url(f"{_POLICIES}.override_host.v3.OverrideHost"),
            "override_host_sources": [{"header": DESTINATION}],
            # The sidecar reads from here which address of its list has answered.
            "selected_host_key": {"key": "envoy.lb", "path": [{"key": f"{DESTINATION}-served"}]},
            "fallback_policy": {"policies": [{"typed_extension_config": fallback}]},
        },
    }


def _circuit_breakers() -> Part:
    # The defaults (1,024 requests, 3 retries) are reached by one busy pool: every request past them is a 500 or 503.
    # The engines queue by themselves, and the sidecar sheds load by what it knows.
    most = 1_000_000
    limits = {"max_connections": most, "max_pending_requests": most, "max_requests": most, "max_retries": most}
    return {"thresholds": [limits]}


def _window(max_body_bytes: int) -> int:
    return max(65_535, max_body_bytes)  # HTTP/2 allows no smaller window
