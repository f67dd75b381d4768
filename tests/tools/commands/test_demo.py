from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from fairlead.processes import Child, free_ports, python_module

MARK = "FAIRLEAD_TEST_MARK"
WITHIN_S = 500  # ends a demo that would hang, with what it said

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "fairlead", "demo", *arguments]
    environment = {**os.environ, MARK: mark, "COLUMNS": "120"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ), mark


def processes_of(mark: str) -> list[int]:
    """All processes that were started, directly or not, with `mark` in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:  # it ended while we looked, or is another user's
            continue
    return found


def test_a_short_demo_compares_the_policies_and_leaves_no_process() -> None:
    process, mark = start("--questions", "6")
    out, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, out + err
    assert processes_of(mark) == []
    assert "\x1b" not in out
    for policy in ("session_affinity", "least_request"):
        assert re.search(rf"laar: time to correct answer [\d.]+% (below|ABOVE) {policy} \(95 % interval", out)
    for policy in ("session_affinity", "least_request", "laar"):
        assert re.search(rf"^\s+{policy}\s+[\d,]+ ms\s+[\d,]+ ms\s+\d+%\s+\d+%\s+[\d.]+", out, re.MULTILINE)
    assert out.count("6/6") == 3
    assert "/debug/decisions" in out
    assert "curl -i http://127.0.0.1:" in out


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_stopped_early_stops_its_children(how: signal.Signals, status: int) -> None:
    process, mark = start("--questions", "200")
    assert process.stdout is not None
    assert "engines:" in process.stdout.readline()  # they run
    assert len(processes_of(mark)) > 4
    os.killpg(process.pid, how)  # as a terminal does, which signals all that run in it
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == status, err
    assert "stopped before the end" in err
    assert processes_of(mark) == []


def test_an_engine_that_dies_ends_the_demo_with_its_last_words() -> None:
    process, mark = start("--questions", "200")
    assert process.stdout is not None
    assert "engines:" in process.stdout.readline()
    engine = next(pid for pid in processes_of(mark) if b"engine" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(engine, signal.SIGKILL)
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1, err
    assert re.search(r"the engine of \S+ ended with status -9; its log ends:", err)
    assert processes_of(mark) == []


def test_keep_stays_up_until_ctrl_c_and_ends_with_0() -> None:
    process, mark = start("--questions", "1", "--keep")
    assert process.stdout is not None
    deadline = time.monotonic() + WITHIN_S
    for line in process.stdout:
        assert time.monotonic() < deadline
        if "stays up" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, err) == (0, "")
    assert processes_of(mark) == []


async def test_engines_that_run_already_are_used_and_left_running(tmp_path: Path) -> None:
    ports = free_ports(2)
    async with AsyncExitStack() as stack:
        for name, port in zip(("small", "large"), ports, strict=True):
            arguments = ("engine", "--model", name, "--listen", f"127.0.0.1:{port}", "--time-scale", "50")
            command = python_module("fairlead", *arguments)
            child = await stack.enter_async_context(Child(name, command, tmp_path / name))
            await child.until_ready(f"http://127.0.0.1:{port}/health")
        process, mark = start("--questions", "3", "--engines", ",".join(f"127.0.0.1:{port}" for port in ports))
        out, err = await asyncio.to_thread(process.communicate, timeout=WITHIN_S)
        assert process.returncode == 0, out + err
        assert processes_of(mark) == []
        assert f"2 engines: small at 127.0.0.1:{ports[0]}, large at 127.0.0.1:{ports[1]}." in out
        assert re.search(r"laar +[\d,]+ ms +[\d,]+ ms +100% +100% +1\.00", out)
        async with httpx.AsyncClient(trust_env=False) as client:
            for port in ports:
                assert (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--engines", "127.0.0.1", "has no port; write host:port"),
        ("--engines", "127.0.0.1:8000,127.0.0.1:8000", "an address is given twice"),
        ("--engines", "127.0.0.1:9", "http://127.0.0.1:9/v1/models does not answer"),
        ("--lengths", "4K", "write tokens with commas"),
        ("--lengths", "4096,12", "each 1024 or more"),
    ],
)
def test_an_option_that_cannot_be_used_is_a_sentence_and_no_traceback(option: str, value: str, message: str) -> None:
    process, _ = start(option, value)
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 2
    assert message in err
    assert "Traceback" not in err
