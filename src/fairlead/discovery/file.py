"""A file that lists endpoints, in YAML or JSON, read again when it is replaced.

    - 10.0.0.1:8000
    - {address: "10.0.0.2:8000", models: [llama-3.1-8b], engine: vllm, region: us-east, draining: true}

Write a new file next to it and rename it into place. One that is written in place may be read half: if that is not a
list of endpoints, it is refused, and the last set stays until the next read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from fairlead.addresses import canonical, host_and_port
from fairlead.core.endpoint import BY_ROOM, Role
from fairlead.dialects import dialect_called, is_name
from fairlead.discovery.source import DiscoveredEndpoint, EndpointSet, SourceStatus, UnusableError

POLL_S: Final = 0.25
_MOST_BYTES: Final = 16 << 20
_DEEPEST: Final = 64
_MOST_ENDPOINTS: Final = 10_000  # more is a mistake, and asking them all would slow down the requests of the others


class FileSource:
    """The endpoints that the file at `path` lists."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def sets(self, status: SourceStatus) -> AsyncIterator[EndpointSet]:
        seen: tuple[int, int, int] | None = None
        while True:
            try:
                stamp = _stamp(self._path)
                if stamp != seen or status.error:
                    endpoints = await asyncio.to_thread(read_endpoints, self._path)
                    seen = stamp
                    yield endpoints
                else:
                    status.confirmed()
            except UnusableError as error:
                status.failed(str(error))
            await asyncio.sleep(POLL_S)


def read_endpoints(path: Path) -> EndpointSet:
    """The endpoints in `path`. Raises UnusableError with all that is wrong, the first mistake of each entry."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UnusableError(f"{path} cannot be read ({error.strerror})") from None
    if len(data) > _MOST_BYTES:
        raise UnusableError(f"{path} is longer than {_MOST_BYTES >> 20} MiB")
    try:
        entries = msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep(path) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        entries = _from_yaml(path, data)
    if not isinstance(entries, list):
        raise UnusableError(f"{path} is not a list of endpoints; write [] for none")
    if len(entries) > _MOST_ENDPOINTS:
        raise UnusableError(f"{path} lists {len(entries)} endpoints; {_MOST_ENDPOINTS} at most are followed")
    return _endpoints(path, entries)


def _from_yaml(path: Path, data: bytes) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _refuse_deep(path, yaml.parse(data, Loader=loader))
        return yaml.load(data, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first_line = str(error).partition("\n")[0]
        raise UnusableError(f"{path} is neither JSON nor YAML: {first_line}") from None


def _refuse_deep(path: Path, events: Iterable[yaml.Event]) -> None:
    """PyYAML's loader in C recurses without a limit: half a million brackets end the process."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise _too_deep(path)


def _too_deep(path: Path) -> UnusableError:
    return UnusableError(f"{path} is nested too deep to be a list of endpoints")


def _endpoints(path: Path, entries: list[Any]) -> EndpointSet:
    found: dict[str, DiscoveredEndpoint] = {}
    mistakes = []
    for index, entry in enumerate(entries):
        try:
            endpoint = _endpoint(entry)
            if endpoint.address in found:
                raise ValueError(f'"{endpoint.address}" is listed twice; remove one')
        except (ValueError, msgspec.ValidationError) as error:
            mistakes.append(f"{path}: [{index}]: {error}")
            continue
        found[endpoint.address] = endpoint
    if mistakes:
        raise UnusableError("; ".join(mistakes[:3]) + (f"; and {len(mistakes) - 3} more" if len(mistakes) > 3 else ""))
    return tuple(found.values())


_Milliseconds = Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    address: str
    models: tuple[str, ...] = ()
    engine: str = ""
    region: str = ""
    role: Role = "both"
    kv_connector: Literal["", "nixl", "proxy", "sglang"] = ""
    bootstrap: str = ""
    labels: dict[str, str] = {}
    prefill_ms_per_token: _Milliseconds | None = None
    decode_ms_per_token: _Milliseconds | None = None
    capability: str = ""
    draining: bool = False


def _endpoint(entry: object) -> DiscoveredEndpoint:
    read = msgspec.convert({"address": entry} if isinstance(entry, str) else entry, _Entry)
    host, port = host_and_port(read.address)
    if read.engine:
        dialect_called(read.engine)
    if read.kv_connector == BY_ROOM and read.role == "both":
        raise ValueError("role: is required with kv_connector sglang: write prefill or decode")
    if read.bootstrap:
        host_and_port(read.bootstrap)
    elif read.kv_connector == BY_ROOM and read.role == "prefill":
        raise ValueError(
            "bootstrap: is required with kv_connector sglang and role prefill: its bootstrap server, HOST:PORT"
        )
    for name in read.models:
        if not is_name(name):
            raise ValueError(f"{name[:40]!r} cannot be the name of a model; write printable characters, 256 at most")
    try:
        read.address = canonical(host, port)
    except ValueError as error:  # Envoy would refuse all endpoints for it
        message = "write one, or put the name under pool.endpoints or discovery.dns, where it is looked up"
        raise ValueError(f"{error}; {message}") from None
    return DiscoveredEndpoint(**msgspec.structs.asdict(read))


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError as error:
        raise UnusableError(f"{path} cannot be read ({error.strerror})") from None
    if not S_ISREG(stat.st_mode):  # reading a pipe would wait for its writer, perhaps forever
        raise UnusableError(f"{path} is not a file")
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
