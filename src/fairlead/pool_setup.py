"""From the validated configuration to the pool that the router works on: names resolved, capability files read."""

from __future__ import annotations

import socket
from pathlib import Path

from fairlead.addresses import host_and_port
from fairlead.config import Config, ConfigError
from fairlead.core.capability import NEUTRAL, Capability, CapabilityFile, parse_capability_file
from fairlead.core.pool import Endpoint, Pool


def make_pool(config: Config, folder: Path, current: Pool | None = None) -> Pool:
    """The pool of `config`, whose capability files are relative to `folder`.

    Endpoints of `current` that stay keep their load and health. Raises ConfigError for a host name that does not
    resolve and for a capability file that cannot be used.
    """
    files: dict[str, CapabilityFile] = {}
    endpoints = []
    for index, configured in enumerate(config.pool.endpoints):
        model = config.model(configured.model)
        endpoint = Endpoint(
            address=resolve(configured.address, f"pool.endpoints[{index}].address"),
            model=configured.model,
            prefill_ms_per_token=model.prefill_ms_per_token,
            decode_ms_per_token=model.decode_ms_per_token,
            max_model_len=model.max_model_len,
            capability=_capability(configured.model, model.capability, folder, files),
            region=configured.region,
            engine=configured.engine,
            kv_connector=configured.kv_transfer.connector if configured.kv_transfer is not None else "",
        )
        endpoints.append(endpoint)
    stay = current.by_address if current is not None else {}
    return Pool([_kept(stay.get(endpoint.address), endpoint) for endpoint in endpoints], config.models_of_routes())


def _kept(known: Endpoint | None, configured: Endpoint) -> Endpoint:
    if known is None:
        return configured
    known.take_constants_of(configured)
    return known


def resolve(address: str, where: str) -> str:
    """`address` with its host as an IP address: Envoy knows its upstream hosts by nothing else."""
    host, port = host_and_port(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f'{where}: the host name "{host}" does not resolve ({error.strerror})') from None
    ip = str(found[4][0])
    return f"[{ip}]:{port}" if found[0] == socket.AF_INET6 else f"{ip}:{port}"


def _capability(model: str, file: str | None, folder: Path, files: dict[str, CapabilityFile]) -> Capability:
    if file is None:
        return NEUTRAL
    path = folder / file
    where = f"pool.models.{model}.capability"
    try:
        if file not in files:
            files[file] = parse_capability_file(path.read_bytes())
        return files[file].of_model(model)
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {path}: {error}") from None
