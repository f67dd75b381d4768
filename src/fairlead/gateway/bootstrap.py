"""Envoy's bootstrap for a Fairlead configuration: one listener, the pool, the sidecar, and an admin page.

`bootstrap` builds it as plain dictionaries in the shape of Envoy's own YAML, `render` writes them. What each setting is
for is written next to it in `listener` and `clusters`, and for users in `docs/envoy.md`. Fields are those of Envoy
1.40.
"""

from __future__ import annotations

from typing import Any

import yaml

from fairlead.config import Config
from fairlead.errors import UserError
from fairlead.gateway.clusters import blind_clusters, engines_cluster, sidecar_cluster
from fairlead.gateway.listener import listener
from fairlead.gateway.overload import overload
from fairlead.gateway.parts import MOST_BODY_BYTES, MOST_PROCESSOR_TIMEOUT_MS, Mode, listen_on
from fairlead.gateway.reached import secrets

__all__ = ["Mode", "bootstrap", "comment", "render"]

# The expression of all open paths is longer than Envoy's default allows; it is still matched in one pass.
_LONG_EXPRESSIONS = {"re2.max_program_size.error_level": 100_000, "re2.max_program_size.warn_level": 100_000}


def bootstrap(config: Config, *, admin_address: str = "127.0.0.1:9901", mode: Mode = "buffered") -> dict[str, Any]:
    """Raises UserError for what Envoy cannot do: listen on a host name, buffer 2 GiB, wait for more than an hour."""
    if config.gateway.max_body_bytes > MOST_BODY_BYTES:
        raise UserError(
            f"gateway.max_body_bytes: Envoy buffers at most {MOST_BODY_BYTES} bytes; write a smaller number"
        )
    if config.gateway.processor_timeout_ms > MOST_PROCESSOR_TIMEOUT_MS:
        longest = f"Envoy waits at most {MOST_PROCESSOR_TIMEOUT_MS} ms"
        raise UserError(f"gateway.processor_timeout_ms: {longest}; write a smaller number")
    return {
        "node": {"id": "fairlead", "cluster": "fairlead"},
        "admin": {"address": listen_on("admin", admin_address)},
        "overload_manager": overload(config),
        "layered_runtime": {"layers": [{"name": "paths", "static_layer": _LONG_EXPRESSIONS}]},
        "static_resources": {
            **({"secrets": keys} if (keys := secrets(config)) else {}),
            "listeners": [listener(config, mode)],
            "clusters": [engines_cluster(config), sidecar_cluster(config, mode), *blind_clusters(config)],
        },
    }


def render(tree: dict[str, Any], *, comment: str = "") -> str:
    """YAML that Envoy reads, with `comment` above it, one `#` a line."""
    heading = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return heading + yaml.dump(tree, Dumper=_PlainDumper, sort_keys=False, width=120)


def comment(command: str, mode: Mode) -> str:
    """The comment at the top of a written bootstrap."""
    body = {
        "buffered": "The sidecar gets each request's headers, then its whole body once (BUFFERED).",
        "full_duplex": "The sidecar gets and returns each request's body in chunks (FULL_DUPLEX_STREAMED),\n"
        "as Envoy AI Gateway, kgateway and Istio ask of an endpoint picker.",
    }[mode]
    return f"Envoy bootstrap, written by: {command}\nWrite it again rather than edit it. {body}"


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - anchors would only puzzle who reads the file
        return True


def _as_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Scripts as they are written, line by line."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_PlainDumper.add_representer(str, _as_block)
