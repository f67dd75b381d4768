"""Build the router's pool from the validated configuration, and from what was discovered in addition to it."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import structlog

from fairlead.addresses import host_and_port, is_ip
from fairlead.config import Config, ConfigError, KvTransfer, ModelConfig
from fairlead.core.capability import NEUTRAL, Capability, CapabilityFile, parse_capability_file
from fairlead.core.endpoint import NO_CAPABILITIES, Endpoint, EndpointSpec
from fairlead.core.health import DRAINING, LEAVING
from fairlead.core.pool import Pool
from fairlead.core.reported import UNIDENTIFIED, EngineIdentity
from fairlead.core.splits import NO_REWRITES, Rewrites
from fairlead.errors import UserError
from fairlead.serving.membership import Member

_USUAL_KV_BYTES = 131_072  # of a token: 32 layers with 8 heads of 128, keys and values in 16 bits, as an 8B Llama has
_USUAL_MEGABYTES_PER_S = 1250.0  # a network of 10 Gbit/s
_MOST_RATIO = 1000.0

log = structlog.get_logger("fairlead")


def make_pool(
    config: Config,
    folder: Path,
    current: Pool | None = None,
    members: Sequence[Member] = (),
    addresses: Sequence[str] | None = None,
    rewrites: Rewrites = NO_REWRITES,
    files: dict[str, CapabilityFile] | None = None,
) -> Pool:
    """The pool of `config`, whose capability files are relative to `folder`, and of `members` after it.

    Its first endpoints are those of `config.pool.endpoints` in their order. Endpoints of `current` that stay keep their
    load and health. `addresses` are those of the configured endpoints, where they are resolved already, and `rewrites`
    those that were discovered. `files` are capability files that need not be read again; those that are read are added.
    Raises ConfigError, with all mistakes, for host names that do not resolve, for two names
    of one endpoint and for capability files that cannot be used. What is wrong with a discovered endpoint is logged,
    and costs only what it is about.
    """
    mistakes: list[UserError] = []
    files = {} if files is None else files
    capabilities = _capabilities(config, folder, files, mistakes)
    of_adapters = _capabilities_of_adapters(config, folder, files, mistakes)
    if addresses is None:
        addresses = _addresses(config, mistakes, [e.address for e in current.endpoints] if current is not None else ())
    if mistakes:
        raise ConfigError("\n".join(str(config.located(mistake)) for mistake in mistakes))
    specs = []
    for configured, address in zip(config.pool.endpoints, addresses, strict=True):
        model, transfer = config.model(configured.model), configured.kv_transfer
        spec = EndpointSpec(
            address=address,
            model=configured.model,
            **_times(model, configured.prefill_ms_per_token, configured.decode_ms_per_token),
            max_model_len=model.max_model_len,
            capability=capabilities[configured.model],
            capabilities=of_adapters.get(configured.model, NO_CAPABILITIES),
            region=configured.region,
            engine=configured.engine,
            kv_connector=transfer.connector if transfer is not None else "",
            kv_bootstrap=(transfer.bootstrap or "") if transfer is not None else "",
            role=configured.role,
            transfer_ms_per_token=_transfer_ms_per_token(model, transfer),
            access=config.pool.access(configured.model, configured),
        )
        specs.append(spec)
    specs += _discovered(config, folder, members, capabilities, of_adapters, set(addresses), files)
    stay = current.by_address if current is not None else {}
    endpoints = [_kept(stay.get(spec.address), spec) for spec in specs]
    at_work = {endpoint.model for endpoint in stay.values() if endpoint.answered_s > -inf}
    for endpoint in endpoints:
        if endpoint.address not in stay and endpoint.model in at_work:
            endpoint.warm_in.begin()
    found = {member.found.address: member for member in members if member.found.address not in addresses}
    for endpoint in endpoints:
        member = found.get(endpoint.address)
        if member is not None and endpoint.identity is UNIDENTIFIED:  # its watch asks soon, and at each start
            endpoint.identified(EngineIdentity(max_model_len=member.serves.max_model_len))
        endpoint.health.withhold(DRAINING, active=member is not None and member.found.draining)
        endpoint.health.withhold(LEAVING, active=member is not None and member.leaving)
    routes = _names_of(rewrites, endpoints) | config.models_of_routes()
    return Pool(endpoints, routes, expected=config.pool.models)


def _names_of(rewrites: Rewrites, endpoints: Iterable[Endpoint]) -> dict[str, tuple[str, ...]]:
    """Names that clients may ask for only because they are rewritten. A served model keeps its own engines."""
    served = {name for each in endpoints for name in (each.model, *each.identity.models)}
    return {
        name: split.models
        for name, split in rewrites.by_name.items()
        if name not in served and name not in split.models
    }


def _discovered(
    config: Config,
    folder: Path,
    members: Iterable[Member],
    capabilities: dict[str, Capability],
    of_adapters: Mapping[str, Mapping[str, Capability]],
    listed: set[str],
    files: dict[str, CapabilityFile],
) -> Iterable[EndpointSpec]:
    """`listed` are the addresses that the configuration has: its own entries count for these."""
    for member in members:
        found, name = member.found, member.model
        if found.address in listed:
            continue
        model = config.model(name)
        file = found.capability or model.capability
        key = f"{name}\n{found.capability}" if found.capability else name
        if key not in capabilities:
            try:
                capabilities[key] = _with_tasks(config, name, file, folder, files)
            except UserError as error:
                log.error("a discovered endpoint counts as always right", endpoint=found.address, reason=str(error))
                capabilities[key] = NEUTRAL
        yield EndpointSpec(
            address=found.address,
            model=name,
            **_times(model, found.prefill_ms_per_token, found.decode_ms_per_token),
            max_model_len=model.max_model_len,
            capability=capabilities[key],
            capabilities=of_adapters.get(name, NO_CAPABILITIES),
            region=found.region,
            engine=found.engine or member.serves.engine,
            kv_connector=found.kv_connector,
            kv_bootstrap=found.bootstrap,
            role=found.role,
            transfer_ms_per_token=_transfer_ms_per_token(model, None),
            access=config.pool.access(name),
        )


def _times(model: ModelConfig, prefill_ms: float | None, decode_ms: float | None) -> dict[str, Any]:
    """Of an endpoint: those of its model, where it has none of its own."""
    said = model.model_fields_set
    prefill_configured = prefill_ms is not None or "prefill_ms_per_token" in said
    decode_configured = decode_ms is not None or "decode_ms_per_token" in said
    prefill_ms = model.prefill_ms_per_token if prefill_ms is None else prefill_ms
    decode_ms = model.decode_ms_per_token if decode_ms is None else decode_ms
    return {
        "prefill_ms_per_token": prefill_ms,
        "decode_ms_per_token": decode_ms,
        "prefill_ratio": _ratio(prefill_ms, model.prefill_ms_per_token),
        "decode_ratio": _ratio(decode_ms, model.decode_ms_per_token),
        "prefill_configured": prefill_configured,
        "decode_configured": decode_configured,
    }


def _ratio(ms: float, of_model_ms: float) -> float:
    """Bounded: samples are scaled by it, and have to stay numbers."""
    return min(max(ms / of_model_ms, 1 / _MOST_RATIO), _MOST_RATIO)


def _transfer_ms_per_token(model: ModelConfig, transfer: KvTransfer | None) -> float:
    bytes_per_token = model.kv_bytes_per_token or _USUAL_KV_BYTES
    return bytes_per_token / (_USUAL_MEGABYTES_PER_S if transfer is None else transfer.megabytes_per_s) / 1e3


def _kept(known: Endpoint | None, spec: EndpointSpec) -> Endpoint:
    if known is None:
        return Endpoint(spec)
    known.respecify(spec)
    return known


def resolve(address: str, where: str, before: str = "") -> str:
    """`address` with its host as an IP address: Envoy knows its upstream hosts by nothing else.

    It stays the one `before` while the name has that, too: servers list theirs in another order each time.
    """
    host, port = host_and_port(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is too long
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f'{where}: the host name "{host}" does not resolve ({reason}); write an IP address') from None
    ips = [(family, str(at[0])) for family, _, _, _, at in found]
    addresses = [f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}" for family, ip in ips]
    return before if before in addresses else addresses[0]


def has_names(config: Config) -> bool:
    """Whether an endpoint of the configuration is named, so that its address may change."""
    return any(not is_ip(host_and_port(endpoint.address)[0]) for endpoint in config.pool.endpoints)


def resolved(config: Config, before: Sequence[str]) -> list[str]:
    """The present addresses of `config.pool.endpoints`; `before` are those in force. Blocks.

    Raises UserError for a name that does not resolve.
    """
    mistakes: list[UserError] = []
    addresses = _addresses(config, mistakes, before)
    if mistakes:
        raise mistakes[0]
    return addresses


def _addresses(config: Config, mistakes: list[UserError], before: Sequence[str]) -> list[str]:
    """Resolved addresses in the order of the endpoints, as are those `before`; mistakes are added to `mistakes`."""
    first_with: dict[str, int] = {}
    for index, configured in enumerate(config.pool.endpoints):
        where = f"pool.endpoints[{index}].address"
        try:
            address = resolve(configured.address, where, before[index] if index < len(before) else "")
        except UserError as error:
            mistakes.append(error)
            continue
        first = first_with.setdefault(address, index)
        if first != index:
            message = f'"{configured.address}" is {address}, as pool.endpoints[{first}] is; remove one of them'
            mistakes.append(UserError(f"{where}: {message}"))
    return list(first_with)


def _capabilities(
    config: Config, folder: Path, files: dict[str, CapabilityFile], mistakes: list[UserError]
) -> dict[str, Capability]:
    """Capabilities by model; mistakes are added to `mistakes`."""
    known = {}
    for model in dict.fromkeys(endpoint.model for endpoint in config.pool.endpoints):
        try:
            known[model] = _with_tasks(config, model, config.model(model).capability, folder, files)
        except UserError as error:
            mistakes.append(error)
    return known


def _capabilities_of_adapters(
    config: Config, folder: Path, files: dict[str, CapabilityFile], mistakes: list[UserError]
) -> dict[str, dict[str, Capability]]:
    """Of adapters that have a file of their own, by their model and their name; mistakes are added to `mistakes`."""
    known: dict[str, dict[str, Capability]] = {}
    for adapter, model in config.pool.adapters().items():
        file = config.model(adapter).capability
        if file is None:
            continue
        try:
            known.setdefault(model, {})[adapter] = _with_tasks(config, adapter, file, folder, files)
        except UserError as error:
            mistakes.append(error)
    return known


def _with_tasks(
    config: Config, model: str, file: str | None, folder: Path, files: dict[str, CapabilityFile]
) -> Capability:
    """The capability of `file`, and those that the model has for single tasks."""
    where = f"pool.models.{model}"
    own = _capability(model, file, f"{where}.capability", folder, files)
    tasks = {
        task: _capability(model, of_task, f"{where}.tasks.{task}", folder, files)
        for task, of_task in config.model(model).tasks.items()
    }
    return replace(own, tasks=tasks) if tasks else own


def _capability(model: str, file: str | None, where: str, folder: Path, files: dict[str, CapabilityFile]) -> Capability:
    if file is None:
        return NEUTRAL
    path = folder / file
    try:
        if file not in files:
            files[file] = parse_capability_file(path.read_bytes())
        return files[file].of_model(model)
    except OSError as error:
        message = f"{path} cannot be read ({error.strerror}); write it with `fairlead fit`, or remove the key"
        raise UserError(f"{where}: {message}") from None
    except ValueError as error:
        raise UserError(f"{where}: {path}: {error}") from None
