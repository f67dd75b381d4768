"""A sidecar in this process over engines that are nowhere, and its configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fairlead.processes import free_ports

POOL: dict[str, Any] = {"endpoints": [{"address": "127.0.0.1:1", "model": "small"}]}


class ConfigFile:
    """`write` what the file shall hold beyond its addresses."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fairlead.yaml"
        self.folder = folder
        grpc, admin = free_ports(2)
        self.listen: dict[str, Any] = {"grpc": f"127.0.0.1:{grpc}", "admin": f"127.0.0.1:{admin}", "drain_s": 0.1}

    def write(self, **sections: Any) -> Path:
        document = {"listen": self.listen, "pool": POOL} | sections
        new = self.path.with_suffix(".new")
        new.write_text(yaml.safe_dump(document))
        return new.replace(self.path)  # as a whole, so that nobody reads half of it

    @property
    def admin_url(self) -> str:
        return f"http://{self.listen['admin']}"
