"""The endpoint picker of llm-d and of the Gateway API inference extension, without a cluster.

The picker learns its endpoints by watching a pool and its pods, so it gets the little of a Kubernetes API that it asks
for, over plain HTTP on loopback. In front stands Envoy with the settings of the project's own chart for use without a
gateway (`config/charts/standalone/values.yaml` of the inference extension 1.5.0), without its access logs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from aiohttp import web

from fairlead.gateway import EnvoyProcess
from fairlead.gateway.parts import listen_on, type_url
from fairlead.processes import Child, free_ports

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_NAMESPACE: Final = "default"
_GROUP: Final = "inference.networking.k8s.io"
_POOL: Final = "bench"
_LABELS: Final = {"app": "bench"}
_PICKER: Final = "picker"
_ENGINES: Final = "engines"
_PREFERENCE: Final = "x-gateway-destination-endpoint"
_HCM: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_EXT_PROC: Final = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_ROUTER: Final = "envoy.extensions.filters.http.router.v3.Router"
_TLS: Final = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


@asynccontextmanager
async def picker(
    binary: Path, addresses: Sequence[str], kubeconfig: Path
) -> AsyncIterator[tuple[str, tuple[int, ...]]]:
    """Envoy's address, and the processes to count: picker and Envoy. `kubeconfig` is written for the picker.

    Raises ChildError when the picker ends before it listens, and TimeoutError when it does not listen.
    """
    (port,) = {address.rpartition(":")[2] for address in addresses}
    grpc_port, health_port, metrics_port, listen_port, admin_port = free_ports(5)
    async with kubernetes([address.rpartition(":")[0] for address in addresses], int(port)) as api:
        _write(_kubeconfig(api), kubeconfig)
        command = (
            str(binary),
            *("--pool-name", _POOL, "--pool-namespace", _NAMESPACE),
            *("--grpc-port", str(grpc_port)),
            *("--grpc-health-port", str(health_port)),
            *("--metrics-port", str(metrics_port)),
            "--metrics-endpoint-auth=false",  # asks the cluster who may read
            "--health-checking",
            "--tracing=false",
            *("--v", "0"),
        )
        environment = {"KUBECONFIG": str(kubeconfig)}
        async with Child("the picker", command, environment=environment) as child:
            await _until_listening(child, grpc_port)
            listen = f"127.0.0.1:{listen_port}"
            async with EnvoyProcess(envoy_settings(listen, admin_port, grpc_port)) as envoy:
                yield listen, (child.pid, envoy.pid)


async def _until_listening(child: Child, port: int) -> None:
    """The picker opens its port once it has read the pods. Raises ChildError when it ends before."""

    async def connects() -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return

    async with asyncio.timeout(30.0):
        ended, connected = asyncio.ensure_future(child.ended()), asyncio.ensure_future(connects())
        try:
            await asyncio.wait((ended, connected), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
        finally:
            ended.cancel()
            connected.cancel()


@asynccontextmanager
async def kubernetes(hosts: Sequence[str], port: int) -> AsyncIterator[str]:
    """The URL of an API that knows two resources: pods, all ready, at these addresses, and the pool that selects them.

    (Without a pool, by `--endpoint-selector`, the inference extension 1.5.0 ends with "name must not be empty".)
    """
    ends = asyncio.Event()

    def answer(document: dict[str, Any]) -> Handler:
        async def answered(_: web.Request) -> web.Response:
            return web.json_response(document)

        return answered

    def collection(kind: str, version: str, items: list[dict[str, Any]]) -> Handler:
        async def listed(request: web.Request) -> web.StreamResponse:
            about = {"apiVersion": version, "metadata": {"resourceVersion": "1"}}
            if request.query.get("watch") not in ("1", "true"):
                return web.json_response({"kind": f"{kind}List", "items": items, **about})
            response = web.StreamResponse(headers={"content-type": "application/json"})
            await response.prepare(request)
            if request.query.get("sendInitialEvents") == "true":  # newer clients list by watching
                events = [{"type": "ADDED", "object": item} for item in items]
                end = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
                events.append({"type": "BOOKMARK", "object": {"apiVersion": version, "kind": kind, "metadata": end}})
                await response.write(b"".join(json.dumps(event).encode() + b"\n" for event in events))
            await ends.wait()  # nothing changes any more
            return response

        return listed

    group_version = f"{_GROUP}/v1"
    version = {"groupVersion": group_version, "version": "v1"}
    group = {"name": _GROUP, "versions": [version], "preferredVersion": version}
    app = web.Application()
    for path, handler in (
        ("/api", answer({"kind": "APIVersions", "versions": ["v1"]})),
        ("/apis", answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})),
        (f"/apis/{_GROUP}", answer({"kind": "APIGroup", "apiVersion": "v1", **group})),
        ("/api/v1", answer(_resources("v1", "pods", "Pod"))),
        (f"/apis/{group_version}", answer(_resources(group_version, "inferencepools", "InferencePool"))),
        (f"/api/v1/namespaces/{_NAMESPACE}/pods", collection("Pod", "v1", _pods(hosts))),
        (
            f"/apis/{group_version}/namespaces/{_NAMESPACE}/inferencepools",
            collection("InferencePool", group_version, [_pool(port)]),
        ),
    ):
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield "http://{}:{}".format(*runner.addresses[0])
    finally:
        ends.set()
        await runner.cleanup()


def _resources(group_version: str, name: str, kind: str) -> dict[str, Any]:
    resource = {"name": name, "namespaced": True, "kind": kind, "verbs": ["get", "list", "watch"]}
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": [resource]}


def _pool(port: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "InferencePool",
        "metadata": {"name": _POOL, "namespace": _NAMESPACE, "uid": _POOL, "resourceVersion": "1"},
        "spec": {
            "selector": {"matchLabels": _LABELS},
            "targetPorts": [{"number": port}],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        },
    }


def _pods(hosts: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"engine-{number}",
                "namespace": _NAMESPACE,
                "uid": f"engine-{number}",
                "resourceVersion": "1",
                "labels": _LABELS,
            },
            "spec": {"containers": []},
            "status": {"phase": "Running", "podIP": host, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        for number, host in enumerate(hosts)
    ]


def _kubeconfig(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": server}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench", "namespace": _NAMESPACE}}],
    }


def _write(document: dict[str, Any], path: Path) -> None:
    path.write_text(yaml.safe_dump(document))


def envoy_settings(listen: str, admin_port: int, grpc_port: int) -> dict[str, Any]:
    """The chart's Envoy: bodies streamed through the picker both ways, TLS to it, the engine by its header."""
    return {
        "admin": {"address": listen_on("admin", f"127.0.0.1:{admin_port}")},
        "static_resources": {
            "listeners": [
                {
                    "name": "clients",
                    "address": listen_on("listen", listen),
                    "per_connection_buffer_limit_bytes": 32_768,
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "envoy.filters.network.http_connection_manager",
                                    "typed_config": _connection_manager(),
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [_engines_cluster(), _picker_cluster(grpc_port)],
        },
    }


def _connection_manager() -> dict[str, Any]:
    route = {"cluster": _ENGINES, "timeout": "86400s", "idle_timeout": "86400s"}
    mode = {f"{side}_{part}_mode": "SEND" for side in ("request", "response") for part in ("header", "trailer")}
    streamed = {f"{side}_body_mode": "FULL_DUPLEX_STREAMED" for side in ("request", "response")}
    processor = {
        "@type": type_url(_EXT_PROC),
        "grpc_service": {"envoy_grpc": {"cluster_name": _PICKER, "authority": "localhost:9002"}, "timeout": "10s"},
        "processing_mode": mode | streamed,
        "message_timeout": "1000s",
    }
    return {
        "@type": type_url(_HCM),
        "stat_prefix": "clients",
        "route_config": {
            "name": "engines",
            "virtual_hosts": [
                {"name": "engines", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
            ],
        },
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": processor},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": type_url(_ROUTER), "suppress_envoy_headers": True},
            },
        ],
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "server_header_transformation": "PASS_THROUGH",
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
        "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
    }


def _engines_cluster() -> dict[str, Any]:
    return {
        "name": _ENGINES,
        "type": "ORIGINAL_DST",
        "connect_timeout": "1000s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": _circuit_breakers(),
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": _PREFERENCE},
    }


def _picker_cluster(grpc_port: int) -> dict[str, Any]:
    windows = {"initial_stream_window_size": 65_536, "initial_connection_window_size": 1_048_576}
    endpoint = {"endpoint": {"address": listen_on("picker", f"127.0.0.1:{grpc_port}")}}
    return {
        "name": _PICKER,
        "type": "STATIC",
        "connect_timeout": "86400s",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": _circuit_breakers(),
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "10s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 2,
                "reuse_connection": True,
                "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
                "tls_options": {"alpn_protocols": ["h2"]},
            }
        ],
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": type_url(_TLS), "common_tls_context": {"validation_context": {}}},
        },
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: {
                "@type": type_url(_HTTP_OPTIONS),
                "explicit_http_config": {"http2_protocol_options": windows},
            }
        },
        "load_assignment": {"cluster_name": _PICKER, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _circuit_breakers() -> dict[str, Any]:
    most = {"max_connections": 40_000, "max_pending_requests": 40_000, "max_requests": 40_000}
    return {"thresholds": [most]}
