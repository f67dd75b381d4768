"""The setting of gRPC's core takes effect: it must stand before grpc is loaded, and be one that this version knows."""

from __future__ import annotations

import os
import subprocess
import sys

from fairlead.extproc.grpc_core import EXPERIMENTS

_START = """
import asyncio, grpc
async def main():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.stop(None)
asyncio.run(main())
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout + done.stderr


def test_the_command_line_does_not_load_grpc_before_the_setting_stands() -> None:
    asked = (
        "import sys, fairlead.cli, fairlead.commands.serve, fairlead.extproc.grpc_core; print('grpc' in sys.modules)"
    )
    assert run(asked).strip() == "False"


def test_it_is_known_to_the_installed_grpc() -> None:
    assert "Unknown experiment" in run(_START, GRPC_EXPERIMENTS="-no_such_thing")
    assert run(_START, GRPC_EXPERIMENTS=EXPERIMENTS) == ""


def test_what_the_operator_has_set_stays() -> None:
    asked = (
        "import os; from fairlead.extproc.grpc_core import prefer_old_listener as prefer; prefer();"
        "print(os.environ['GRPC_EXPERIMENTS'])"
    )
    assert (run(asked).strip(), run(asked, GRPC_EXPERIMENTS="mine").strip()) == (EXPERIMENTS, "mine")
