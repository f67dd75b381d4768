"""The pool that the sidecar keeps for Envoy: written when it is known, and never a reason not to serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from fairlead.serving.sidecar import Sidecar
from tests.serving.world import ConfigFile
from tests.waiting import until


def ports_in(path: Path) -> list[int]:
    return [
        host["endpoint"]["address"]["socket_address"]["port_value"]
        for resource in json.loads(path.read_bytes())["resources"]
        for host in resource["endpoints"][0].get("lb_endpoints", [])
    ]


async def test_the_files_follow_the_pool(file: ConfigFile) -> None:
    folder = file.folder / "kept"
    gateway: dict[str, Any] = {"remember": str(folder)}
    async with Sidecar(file.write(gateway=gateway)) as sidecar:
        ports = [int(e.address.rpartition(":")[2]) for e in sidecar.services.router.pool.endpoints]
        await until(lambda: (folder / "engines.json").exists() and ports_in(folder / "engines.json") == ports, "kept")


async def test_a_sidecar_that_does_not_know_the_pool_yet_leaves_what_the_last_one_wrote(file: ConfigFile) -> None:
    folder = file.folder / "kept"
    folder.mkdir()
    (folder / "engines.json").write_text("what the last one wrote")
    nothing_yet = {"discovery": {"file": "missing.yaml"}, "gateway": {"remember": str(folder)}}
    async with Sidecar(file.write(**nothing_yet)) as sidecar:
        await until(lambda: bool(sidecar.services.discovery.statuses[0].failures), "the source has failed")
    assert (folder / "engines.json").read_text() == "what the last one wrote"


async def test_a_folder_that_cannot_be_written_is_one_line_in_the_log(file: ConfigFile) -> None:
    (file.folder / "kept").write_text("in the way")
    with capture_logs() as logs:
        async with Sidecar(file.write(gateway={"remember": str(file.folder / "kept")})):
            pass
    (line,) = [line for line in logs if line["event"] == "the pool cannot be kept for Envoy"]
    assert line["reason"] == "File exists"
