"""Whether an Envoy that runs still has the bootstrap of a configuration, which no reload of the sidecar changes."""

from __future__ import annotations

from typing import Any, Final

from fairlead.config import Config
from fairlead.gateway.bootstrap import bootstrap

# All that `bootstrap` reads: a test holds it to that.
MADE_OF: Final = ("listen", "gateway", "pool", "discovery", "routes", "clients", "tenants", "admission")


def outdated_by(old: Config, new: Config) -> list[str]:
    """The sections by which Envoy would get another bootstrap; none behind a gateway that is not ours.

    Not the addresses of engines, where Envoy follows the sidecar. Raises UserError for what Envoy cannot do.
    """
    changed = [name for name in MADE_OF if getattr(old, name) != getattr(new, name)]
    if not changed or not _has_our_envoy(new) or _but_addresses(old) == _but_addresses(new):
        return []
    return changed


def _has_our_envoy(config: Config) -> bool:
    """Of another gateway, `fallbacks` and `allowed_media_domains` count; most need 0 fallbacks."""
    if config.gateway.model_fields_set - {"fallbacks", "allowed_media_domains"}:
        return True
    cluster = config.discovery.kubernetes
    return config.gateway.fallbacks != 0 and (cluster is None or cluster.inference_pool is None)


def _but_addresses(config: Config) -> dict[str, Any]:
    """The bootstrap without what stands there only until the sidecar has answered once."""
    tree = bootstrap(config)
    if config.gateway.endpoints == "eds":
        resources = tree["static_resources"]
        resources["clusters"] = [
            each["name"] if each["name"].startswith("listed:") else each for each in resources["clusters"]
        ]
    return tree
