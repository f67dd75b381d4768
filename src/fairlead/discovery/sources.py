"""The sources that a configuration names."""

from __future__ import annotations

from pathlib import Path

from fairlead.config import Discovery
from fairlead.discovery.file import FileSource
from fairlead.discovery.kubernetes import KubernetesSource
from fairlead.discovery.source import DiscoveredEndpoint, Source


def sources(config: Discovery, folder: Path) -> list[Source]:
    """In the order in which they win where two list one address; paths are relative to `folder`."""
    found: list[Source] = []
    if config.file is not None:
        found.append(FileSource(folder / config.file))
    if config.kubernetes is not None:
        found.append(KubernetesSource(config.kubernetes, folder))
    for each in config.dns:
        from fairlead.discovery.dns import DnsSource  # its library only where names are looked up

        like = DiscoveredEndpoint("", models=each.models, engine=each.engine or "", region=each.region)
        found.append(DnsSource(each.name, each.port, like, config.dns_servers))
    return found
