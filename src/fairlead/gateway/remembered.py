"""The pool as the last sidecar knew it, in files for an Envoy that starts while no sidecar answers.

One file for each cluster, as Envoy takes no more from one: a DiscoveryResponse in JSON, the same endpoints that the
sidecar sends (`endpoint_discovery`). It has addresses, models and names of keys, never a key. Envoy 1.40 does not start
where a file is missing, so `prepare` writes empty ones; one that it cannot read leaves it as it was, or without hosts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from google.protobuf.json_format import MessageToDict

import fairlead.gateway.pb.endpoint_discovery_pb2 as pb
from fairlead.config import Config
from fairlead.files import replace_file
from fairlead.gateway.guard import model_cluster, models_of_blind_routes
from fairlead.gateway.parts import ENGINES_CLUSTER, type_url

_TYPE_URL: Final = type_url("envoy.config.endpoint.v3.ClusterLoadAssignment")
_SUFFIX: Final = ".json"
_LONGEST_NAME: Final = 240  # file systems take 255 bytes; with the suffix, and what `replace_file` adds to it


def file_of(folder: Path, cluster: str) -> Path:
    name = quote(cluster, safe="")
    if len(name) > _LONGEST_NAME:
        name = f"long-{blake2b(cluster.encode(), digest_size=16).hexdigest()}"
    return folder / f"{name}{_SUFFIX}"


def prepare(config: Config) -> None:
    """Write the files that Envoy needs to start and that are not there yet. Raises OSError."""
    if config.gateway.remember is None:
        return
    folder = Path(config.gateway.remember)
    folder.mkdir(parents=True, exist_ok=True)
    for cluster in _clusters(config):
        if not (path := file_of(folder, cluster)).exists():
            replace_file(path, _response())


def write(config: Config, resource: Callable[[str], bytes]) -> None:
    """Write what has changed; `resource` gives the endpoints of a cluster as Envoy is sent them. Raises OSError.

    A file of a model that the configuration does not name any more is kept true, too: an Envoy may still read it. Not
    one of a very long name, as its file does not say whose it is.
    """
    if config.gateway.remember is None:
        return
    folder = Path(config.gateway.remember)
    folder.mkdir(parents=True, exist_ok=True)
    for cluster in dict.fromkeys([*_clusters(config), *_clusters_in(folder)]):
        path, data = file_of(folder, cluster), _response(resource(cluster))
        if not path.exists() or path.read_bytes() != data:
            replace_file(path, data)


def _clusters(config: Config) -> Iterable[str]:
    """Those of which `fairlead envoy` writes one that reads a file."""
    of_models = (served[0] for name, served in models_of_blind_routes(config).items() if name.startswith("model:"))
    return [ENGINES_CLUSTER, *map(model_cluster, of_models)]


def _clusters_in(folder: Path) -> Iterable[str]:
    return [unquote(path.name.removesuffix(_SUFFIX)) for path in sorted(folder.glob(f"model%3A*{_SUFFIX}"))]


def _response(*resources: bytes) -> bytes:
    found = [
        {
            "@type": _TYPE_URL,
            **MessageToDict(pb.ClusterLoadAssignment.FromString(each), preserving_proto_field_name=True),
        }
        for each in resources
    ]
    return json.dumps({"resources": found}, indent=1).encode() + b"\n"
