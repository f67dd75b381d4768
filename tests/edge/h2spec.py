"""Run h2spec (https://github.com/summerwind/h2spec) against the edge: `make test-h2spec`. Ends 1 on a failure.

h2spec is a Go program, built once into the user's cache. Its cases are ported in `test_rules`, so a machine without Go
misses nothing but the second opinion.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from fairlead.edge.grpc import Health
from fairlead.edge.server import Server

VERSION = "v2.2.1+incompatible"
# It makes its table 128 bytes although our SETTINGS say 0 (RFC 7541, 4.2, forbids it), while its own case 6.3/1 expects
# a refusal of 1 byte.
CONTRADICTORY = {"Sends a dynamic table size update"}
ANSWER_WITHIN_S = 60  # no case waits for it where the edge is right: it ends a case that would hang


def h2spec() -> Path:
    """The program, built if it is not there. Raises SystemExit without Go."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead" / "h2spec"
    program = cache / "h2spec"
    if not program.exists():
        if shutil.which("go") is None:
            sys.exit("h2spec is a Go program; install Go, or rely on its cases in tests/edge/test_rules.py")
        target = f"github.com/summerwind/h2spec/cmd/h2spec@{VERSION}"
        subprocess.run(["go", "install", target], env=os.environ | {"GOBIN": str(cache)}, check=True)
    return program


async def failures(program: Path) -> tuple[int, dict[str, str]]:
    """How many cases ran, and those that failed, each with what h2spec says of it."""
    health = Health(("",))
    server = Server(health.methods(), max_message_bytes=1 << 20, report_fault=print)
    port = await server.start("127.0.0.1:0")
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        arguments = (
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "-o",
            str(ANSWER_WITHIN_S),
            "-j",
            str(report),
            "generic",
            "http2",
            "hpack",
        )
        child = await asyncio.create_subprocess_exec(program, *arguments, stdout=asyncio.subprocess.DEVNULL)
        await child.wait()
        cases = list(ElementTree.parse(report).iter("testcase"))
    await server.drain(0)
    failed = {
        case.get("classname") or "": " ".join("".join(found.itertext()).split())
        for case in cases
        for found in (*case.iter("failure"), *case.iter("error"))
    }
    return len(cases), failed


if __name__ == "__main__":
    ran, failed = uvloop.run(failures(h2spec()))
    unexpected = {name: why for name, why in failed.items() if name not in CONTRADICTORY}
    expected = len(failed) - len(unexpected)
    print(f"h2spec: {ran} cases, {len(failed)} failed, {expected} of them as explained in {__file__}")
    for name, why in unexpected.items():
        print(f"  failed: {name}: {why}")
    sys.exit(1 if unexpected or not ran else 0)
