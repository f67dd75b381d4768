"""Endpoints out of pods and EndpointSlices. Pure.

What is ready takes requests. What has been ready and is not any more, or is about to end, drains; what has never been
ready is not listed yet, as an engine that loads its weights has nothing to drain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Final

from fairlead.addresses import canonical
from fairlead.core.endpoint import BY_PROXY, BY_ROOM, Role
from fairlead.dialects import DIALECTS, MOST_CARDS, is_name
from fairlead.discovery.kubernetes.objects import EndpointSlice, Pod, SlicePort
from fairlead.discovery.source import DiscoveredEndpoint, EndpointSet

# Of a pod, as an annotation or a label; the first that is there counts.
MODEL: Final = ("fairlead/model",)  # names, with commas between them
ENGINE: Final = ("fairlead/engine", "llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
REGION: Final = ("fairlead/region", "topology.kubernetes.io/region")
ROLE: Final = ("fairlead/role", "llm-d.ai/role")
KV_CONNECTOR: Final = ("fairlead/kv-connector",)
BOOTSTRAP_PORT: Final = ("fairlead/bootstrap-port",)
PREFILL: Final = ("fairlead/prefill-ms-per-token",)
DECODE: Final = ("fairlead/decode-ms-per-token",)
CAPABILITY: Final = ("fairlead/capability",)
ACTIVE_PORTS: Final = ("fairlead/active-ports", "llm-d.ai/active-ports")

_ROLES: Final[Mapping[str, Role]] = {"prefill": "prefill", "decode": "decode"}  # any other does both
_CONNECTORS: Final = ("nixl", "proxy")
_BOOTSTRAP_PORT: Final = "8998"  # SGLang's default
_ENDED: Final = frozenset({"Succeeded", "Failed"})


class Seen:
    """Addresses that have been ready, for as long as they are listed."""

    def __init__(self) -> None:
        self._ready: frozenset[str] = frozenset()

    def settle(self, listed: Iterable[tuple[DiscoveredEndpoint, bool]]) -> EndpointSet:
        """The endpoints of `listed`, each with whether it takes requests; each address once, sorted by it."""
        chosen: dict[str, tuple[DiscoveredEndpoint, bool]] = {}
        for endpoint, takes in listed:  # an address passes from a pod that ends to a new one
            if endpoint.address not in chosen or (takes and not chosen[endpoint.address][1]):
                chosen[endpoint.address] = endpoint, takes
        kept = {address: one for address, one in chosen.items() if one[1] or address in self._ready}
        self._ready = frozenset(kept)
        return tuple(kept[address][0] for address in sorted(kept))


def of_pods(pods: Iterable[Pod], ports: Sequence[int]) -> Iterable[tuple[DiscoveredEndpoint, bool]]:
    """One endpoint for each port of each pod: several ports are data-parallel ranks."""
    for pod in pods:
        status, metadata = pod.status, pod.metadata
        if not status.pod_ip or status.phase in _ENDED:
            continue
        is_ready = any(each.type == "Ready" and each.status == "True" for each in status.conditions or ())
        takes = is_ready and metadata.deletion_timestamp is None
        said = {**(metadata.labels or {}), **(metadata.annotations or {})}
        engine = _first(said, ENGINE)
        role = _ROLES.get(_first(said, ROLE), "both")
        connector = _connector(said, role)
        meets = connector == BY_ROOM and role == "prefill"
        active = {part.strip() for part in _first(said, ACTIVE_PORTS).split(",")} - {""}
        for rank, port in enumerate(ports):
            if active and str(port) not in active:
                continue
            endpoint = DiscoveredEndpoint(
                address=_address(status.pod_ip, port),
                models=_models(said),
                engine=engine if engine in DIALECTS else "",  # the engine itself is asked
                region=region if is_name(region := _first(said, REGION)) else "",
                role=role,
                kv_connector=connector,
                bootstrap=_address(status.pod_ip, _bootstrap_port(said)) if meets else "",
                labels={"pod": metadata.name} | ({"rank": str(rank)} if len(ports) > 1 else {}),
                prefill_ms_per_token=_milliseconds(_first(said, PREFILL)),
                decode_ms_per_token=_milliseconds(_first(said, DECODE)),
                capability=_file(_first(said, CAPABILITY)),
                draining=not takes,
            )
            yield endpoint, takes


def of_slices(slices: Collection[EndpointSlice], port: str | None) -> Iterable[tuple[DiscoveredEndpoint, bool]]:
    """The endpoints of one Service at the port of that name or number; None: at its only one.

    A Service of two families lists each pod under both; the IPv4 addresses are used.
    """
    families = {each.address_type for each in slices if each.endpoints}
    family = "IPv4" if "IPv4" in families else "IPv6"
    for each in slices:
        number = _port(each.ports or (), port)
        if each.address_type != family or number is None:
            continue
        for listed in each.endpoints or ():
            conditions = listed.conditions
            takes = conditions is None or (conditions.ready is not False and not conditions.terminating)
            for ip in listed.addresses[:1]:  # more are the same endpoint's
                yield DiscoveredEndpoint(address=_address(ip, number), draining=not takes), takes


def without_port(slices: Collection[EndpointSlice], port: str | None) -> str:
    """What is wrong where none of the endpoints can be reached at that port; empty otherwise."""
    filled = [each for each in slices if each.endpoints]
    if not filled or any(_port(each.ports or (), port) is not None for each in filled):
        return ""
    has = sorted({_shown(each) for one in filled for each in _tcp(one.ports or ())}) or ["none"]
    asked = "port is not written" if port is None else f'its port "{port}" is not there'
    return f"{asked}, and it has {', '.join(has)}; write port: the name or number of one for TCP"


def _shown(port: SlicePort) -> str:
    return f"{port.name} ({port.port})" if port.name else str(port.port)


def _tcp(ports: Sequence[SlicePort]) -> list[SlicePort]:
    return [each for each in ports if each.protocol in (None, "TCP") and each.port is not None]


def _port(ports: Sequence[SlicePort], wanted: str | None) -> int | None:
    known = _tcp(ports)
    if wanted is None:
        return known[0].port if len(known) == 1 else None
    return next((each.port for each in known if wanted in (each.name, str(each.port))), None)


def _models(said: Mapping[str, str]) -> tuple[str, ...]:
    """As many as are read of one engine that is asked."""
    written = (part.strip() for part in _first(said, MODEL).split(","))
    return tuple(islice(filter(is_name, written), MOST_CARDS))


def _first(said: Mapping[str, str], names: Iterable[str]) -> str:
    return next((said[name] for name in names if said.get(name)), "")


def _connector(said: Mapping[str, str], role: Role) -> str:
    """By default that of llm-d's pods with a role: the engine's proxy asks the one that computes the prompt."""
    named = _first(said, KV_CONNECTOR)
    if named == BY_ROOM and role != "both":
        return named
    return named if named in _CONNECTORS else "" if role == "both" else BY_PROXY


def _milliseconds(written: str) -> float | None:
    """What is no positive number counts as not written."""
    try:
        ms = float(written)
    except ValueError:
        return None
    return ms if 0 < ms < inf else None


def _bootstrap_port(said: Mapping[str, str]) -> int:
    named = _first(said, BOOTSTRAP_PORT)
    return int(named if named.isdecimal() and len(named) < 6 and 0 < int(named) < 1 << 16 else _BOOTSTRAP_PORT)


def _file(name: str) -> str:
    """`name`, unless it leaves the folder of the configuration: whoever writes pods need not be its owner."""
    return "" if name.startswith("/") or ".." in name.split("/") else name


def _address(ip: str, port: int) -> str:
    """The API server takes zeros before a number of an IPv4 address, and reads it as decimal."""
    return canonical(ip if ":" in ip else ".".join(part.lstrip("0") or "0" for part in ip.split(".")), port)
