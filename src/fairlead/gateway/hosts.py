"""Where a cluster of engines has its hosts from: the sidecar, the file of the last sidecar, or the configuration."""

from __future__ import annotations

from pathlib import Path

from fairlead.config import Config, EndpointConfig
from fairlead.gateway.parts import SIDECAR_CLUSTER, Part, discovery, endpoints, seconds
from fairlead.gateway.reached import metadata
from fairlead.gateway.remembered import file_of


def answering(config: Config) -> list[EndpointConfig]:
    """What Envoy may send a request to: not the endpoints that only compute prompts for others."""
    return [each for each in config.pool.endpoints if each.role != "prefill"]


def lists_engines(config: Config, model: str | None) -> bool:
    """Whether the bootstrap can list engines, of `model` or any, that Envoy else has from the sidecar alone."""
    listed = (each for each in answering(config) if model is None or each.model == config.base_of(model))
    return config.gateway.endpoints == "eds" and any(listed)


def listed_hosts(config: Config, name: str, model: str | None) -> Part:
    """The list of the configuration."""
    listed = [each for each in answering(config) if model is None or each.model == config.base_of(model)]
    addresses = [each.address for each in listed]
    assignment = endpoints(name, addresses)
    for each, host in zip(listed, assignment["endpoints"][0]["lb_endpoints"], strict=True):
        host["metadata"] = {"filter_metadata": metadata(model or each.model, config.pool.access(each.model, each))}
    if model is not None:
        # By default, a model with only half of its engines healthy loses some of its requests to the next model.
        assignment["policy"] = {"overprovisioning_factor": 100 * len(addresses)}
    return {**discovery(addresses), "load_assignment": assignment}


def present_hosts(config: Config, service: str, model: str | None) -> Part:
    """While all is well."""
    return _followed(service) if config.gateway.endpoints == "eds" else listed_hosts(config, service, model)


def _followed(service: str) -> Part:
    """The sidecar's, for as long as both live (`endpoint_discovery`).

    Without a sidecar Envoy keeps the hosts that it had, and one that starts then has none until the sidecar is there.
    `service` is the cluster's name to the sidecar.
    """
    # Defaults: 0.5 and 30 s. The first requests of a sidecar that is back wait for this (`EndpointDiscovery.followed`).
    back_off = {"base_interval": seconds(100), "max_interval": seconds(250)}
    sidecar = {"envoy_grpc": {"cluster_name": SIDECAR_CLUSTER, "retry_policy": {"retry_back_off": back_off}}}
    source = {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": [sidecar]}
    fetched = {
        "resource_api_version": "V3",
        "initial_fetch_timeout": seconds(1000),  # default 15 s, in which Envoy does not listen
        "api_config_source": source,
    }
    return _by_eds(service, fetched)


def remembered_hosts(folder: Path, service: str) -> Part:
    """Of a file that the last sidecar wrote (`remembered`).

    Envoy watches the folder: a file that is replaced is not always seen otherwise, as where a link leads elsewhere.
    """
    path = {"path": str(file_of(folder, service)), "watched_directory": {"path": str(folder)}}
    return _by_eds(service, {"resource_api_version": "V3", "path_config_source": path})


def _by_eds(service: str, source: Part) -> Part:
    # Without the last a host that was removed stays for as long as its health checks succeed.
    followed = {"eds_config": source, "service_name": service}
    return {"type": "EDS", "eds_cluster_config": followed, "ignore_health_on_host_removal": True}
