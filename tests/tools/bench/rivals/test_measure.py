"""The passes, briefly, with Fairlead and its Envoy, and with rivals that do not start."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fairlead.processes import Child
from fairlead.tools.bench.processes import members
from fairlead.tools.bench.rivals import measure as measuring
from fairlead.tools.bench.rivals.gateways import DIRECT, Gateway
from fairlead.tools.bench.rivals.install import UnavailableError
from fairlead.tools.bench.rivals.measure import Effort, Missing, measure
from fairlead.tools.bench.rivals.pins import GATEWAY_API, LLM_D, SGLANG_ROUTER, SMG, VLLM_ROUTER, Pin
from fairlead.tools.bench.variants import ALONE, FAIRLEAD, FAIRLEAD_GRPCIO
from tests.waiting import until

SERVES_NOTHING = """#!/usr/bin/env python3
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        self.send_response(503)
        self.send_header("content-length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def a_rival(folder: Path, pin: Pin, command: str, script: str) -> Path:
    """Where `pin` is installed, with `script` as its command."""
    binary = folder / pin.name / "bin" / command
    binary.parent.mkdir(parents=True)
    binary.write_text(script)
    binary.chmod(0o755)
    return folder / pin.name


@pytest.mark.stack
@pytest.mark.slow
async def test_ours_are_measured_and_rivals_that_do_not_start_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_SERVES_WITHIN_S", 10.0)
    rivals: dict[Pin, Path | UnavailableError] = {
        SGLANG_ROUTER: UnavailableError("pip cannot install it"),
        SMG: a_rival(tmp_path, SMG, "smg", "#!/bin/sh\necho 'no such flag: --policy' >&2\nexit 2\n"),
        VLLM_ROUTER: a_rival(tmp_path, VLLM_ROUTER, "vllm-router", SERVES_NOTHING),
        LLM_D: a_rival(tmp_path, LLM_D, "epp", "#!/bin/sh\necho 'no cluster' >&2\nexit 1\n"),
        GATEWAY_API: tmp_path / "gone",
    }
    effort = Effort(rounds=2, measured_s=1.0, pools=(4,), bodies_kib=(1, 64), connections=(1, 4))
    passes: list[int] = []

    measured = await measure(effort, rivals, 0, lambda: passes.append(1))

    assert [run.first_error for run in measured.runs if run.errors] == []
    assert {run.gateway for run in measured.runs} == {DIRECT, ALONE, FAIRLEAD, FAIRLEAD_GRPCIO}
    assert len(measured.runs) == 4 * len(passes) == 4 * effort.passes() == 32
    for run in measured.runs:
        assert run.requests_per_s > 0
        assert (run.cpu_us > 0) == (run.resident_bytes > 0) == (run.gateway != DIRECT)
    assert {each.gateway for each in measured.idle} == {DIRECT, ALONE, FAIRLEAD, FAIRLEAD_GRPCIO}
    reasons = {each.gateway: each.reason for each in measured.missing}
    assert Missing(SGLANG_ROUTER.title, 4, "pip cannot install it") in measured.missing
    assert reasons[SMG.title].startswith("it does not start: smg ended")
    assert reasons[SMG.title].endswith("no such flag: --policy")
    assert "it starts and does not serve: answered b'HTTP/1.0 503" in reasons[VLLM_ROUTER.title]
    assert reasons[LLM_D.title].endswith("no cluster")
    assert "No such file" in reasons[GATEWAY_API.title]


async def test_a_gateway_is_all_processes_of_its_sessions() -> None:
    script = "sleep 60 & sleep 60 & wait"
    async with Child("a family", ["sh", "-c", script]) as child:
        await until(lambda: len(members(child.pid)) >= 3, "the shell has started both")
        gateway = Gateway("a family", "127.0.0.1:1", (child.pid,))
        assert gateway.resident_bytes() > 0
        assert os.getpid() not in members(child.pid)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def test_a_paused_gateway_uses_no_time_until_it_is_resumed() -> None:
    async with Child("busy", ["sh", "-c", "while :; do :; done"]) as child:
        gateway = Gateway("busy", "127.0.0.1:1", (child.pid,))
        gateway.pause()
        await until(lambda: is_stopped(child.pid), "the signal is delivered, when it runs next")
        before_s = gateway.cpu_s()
        await asyncio.sleep(0.2)
        assert gateway.cpu_s() == before_s
        gateway.resume()
        await until(lambda: gateway.cpu_s() > before_s, "it uses time again")
