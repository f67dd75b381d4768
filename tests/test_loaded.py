"""What `serve` loads: nothing of the tools, and no numerical library."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from fairlead.processes import Child, free_ports

CONFIG = """
listen: {{grpc: "127.0.0.1:{grpc}", admin: "127.0.0.1:{admin}"}}
pool: {{endpoints: [{{address: "127.0.0.1:{engine}", model: m}}]}}
"""
NOT_LOADED = re.compile(r"(fairlead\.tools|numpy|polars|matplotlib|scipy|sklearn)(\..*)?")


def loaded(log: Path) -> set[str]:
    """The modules of what `-X importtime` wrote."""
    return set(re.findall(r"^import time:.*\| +(\S+)$", log.read_text(), re.MULTILINE))


async def imported_by(module: str, log: Path) -> set[str]:
    async with Child("python", [sys.executable, "-X", "importtime", "-c", f"import {module}"], log) as child:
        assert await child.wait() == 0, child.log_tail()
    return loaded(log)


def too_much(modules: set[str]) -> list[str]:
    return sorted(filter(NOT_LOADED.fullmatch, modules))


@pytest.mark.parametrize(
    "module", ["fairlead.serving.sidecar", "fairlead.commands.serve", "fairlead.commands.up", "fairlead.client"]
)
async def test_what_serves_is_imported_without_the_tools(tmp_path: Path, module: str) -> None:
    modules = await imported_by(module, tmp_path / "log")

    assert module in modules
    assert too_much(modules) == []


async def test_a_sidecar_that_is_ready_has_loaded_no_tools(tmp_path: Path) -> None:
    """What is imported late, inside functions, counts too."""
    grpc, admin, engine = free_ports(3)
    path = tmp_path / "fairlead.yaml"
    path.write_text(CONFIG.format(grpc=grpc, admin=admin, engine=engine))
    serve = [sys.executable, "-X", "importtime", "-m", "fairlead", "serve", "--config", str(path)]
    async with Child("the sidecar", serve, tmp_path / "log") as sidecar:
        await sidecar.until_ready(f"http://127.0.0.1:{admin}/healthz")

    modules = loaded(tmp_path / "log")
    assert "fairlead.serving.sidecar" in modules
    assert too_much(modules) == []


async def test_a_command_that_studies_would_be_seen(tmp_path: Path) -> None:
    modules = await imported_by("fairlead.tools.replay.replay_study", tmp_path / "log")

    assert {"fairlead.tools", "fairlead.tools.replay.replay_study", "polars", "matplotlib"} <= set(too_much(modules))
