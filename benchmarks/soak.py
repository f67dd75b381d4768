"""An hour at saturation: is memory flat, and is every request served? `python benchmarks/soak.py`.

Sixteen connections ask without a pause, through a real Envoy, for bodies of 1 to 256 KB, half of them for a route, so
that the body is rewritten. Every fourth request begins a new conversation, with a session and a prompt that nobody sent
before, so sessions and prefixes fill the room that they are given and are evicted. Connections are made anew each
minute. Memory of sidecar and Envoy is read at the end of each minute. Ends 1 where a request failed, where load is left
behind, or where the sidecar's memory left the band after the warm-up. Writes benchmarks/results/soak.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import uvloop
import yaml

from fairlead.config import Config
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.processes import free_ports
from fairlead.tools.bench.bodies import chat_body
from fairlead.tools.bench.decision import MODEL, ROUTE
from fairlead.tools.bench.load import Load, Plan, Result, chat_request
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.processes import addresses_of, child, cpu_s, resident_bytes

CONNECTIONS: Final = 16
SIZES_KIB: Final = (1, 16, 1, 64, 1, 16, 1, 256)
TURNS: Final = 4  # requests of a conversation
WARM_UP_MINUTES: Final = 10
BAND: Final = 0.05
MAX_PREFIX_BYTES: Final = 32 << 20  # small enough to be full in the warm-up, on a busy machine too
MAX_SESSIONS: Final = 20_000
_MINUTE_S: Final = 60.0
_ATTEMPTS_TO_SERVE: Final = 50
_SYSTEM: Final = b"Answer in one paragraph."  # how every body of `chat_body` begins
_RESULTS: Final = Path(__file__).parent / "results" / "soak.md"


class Minute(NamedTuple):
    requests: int
    errors: int
    first_error: str
    p50_us: float
    p99_us: float
    sidecar_cpu_us: float  # a request
    sidecar_bytes: int
    envoy_bytes: int
    sidecar_files: int  # open
    loop_within_s: float  # the least bound of its histogram that no delay of the sidecar's loop was above


def conversations(address: str, seed: int) -> Iterator[bytes]:
    """Requests without end: each conversation has a session and a first message of its own."""
    names = (MODEL, ROUTE)
    bodies = [chat_body("english", size * 1024, names[n % 2], seed + n) for n, size in enumerate(SIZES_KIB * 2)]
    for number in itertools.count():
        body = bodies[number % len(bodies)].replace(_SYSTEM, b"%024d" % number, 1)
        request = chat_request(address, body, f"soak-{number}")
        yield from itertools.repeat(request, TURNS)


async def soak(minutes: int, seed: int) -> tuple[list[Minute], Any, list[str]]:
    """The minutes; what the sidecar says of itself at the end; and its engines that still have load."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child("fairlead.tools.bench.upstream", "8"))
        addresses = await addresses_of(upstream)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fairlead-soak-")))
        grpc_port, admin_port, listen_port, envoy_admin = free_ports(4)
        address, admin = f"127.0.0.1:{listen_port}", f"http://127.0.0.1:{admin_port}"
        document = {
            "listen": {"grpc": f"127.0.0.1:{grpc_port}", "admin": f"127.0.0.1:{admin_port}"},
            # A neighbour that takes all cores makes the sidecar late, not absent: see p99.
            "gateway": {"listen": address, "processor_timeout_ms": 10_000},
            "pool": {"endpoints": [{"address": each, "model": MODEL} for each in addresses]},
            "routes": {ROUTE: [MODEL]},
            "sessions": {"max_entries": MAX_SESSIONS},
            "prefixes": {"max_bytes": MAX_PREFIX_BYTES},
        }
        path = folder / "fairlead.yaml"
        path.write_text(yaml.safe_dump(document))
        sidecar = await stack.enter_async_context(child("fairlead", "serve", "--config", str(path)))
        await sidecar.until_ready(f"{admin}/readyz")
        tree = bootstrap(Config.model_validate(document), admin_address=f"127.0.0.1:{envoy_admin}")
        envoy = await stack.enter_async_context(EnvoyProcess(tree, concurrency=1))
        requests = conversations(address, seed)
        await _until_serving(_plan(address, seed, 0.2), requests)
        rows, late = [], await _late(admin)
        for number in range(minutes):
            cpu_before_s = cpu_s(sidecar.pid)
            result = await Load(_plan(address, seed, _MINUTE_S), requests).run()
            later = await _late(admin)
            row = Minute(
                requests=result.requests,
                errors=result.errors,
                first_error=result.first_error,
                p50_us=result.p50_us,
                p99_us=result.p99_us,
                sidecar_cpu_us=(cpu_s(sidecar.pid) - cpu_before_s) * 1e6 / max(1, result.requests),
                sidecar_bytes=resident_bytes(sidecar.pid),
                envoy_bytes=resident_bytes(envoy.pid),
                sidecar_files=_open_files(sidecar.pid),
                loop_within_s=max(
                    (bound for bound, count in later.items() if count > late.get(bound, 0.0)), default=0.0
                ),
            )
            late = later
            rows.append(row)
            print(number + 1, *row, flush=True)
        status = await asyncio.to_thread(_page, f"{admin}/debug/status")
        endpoints = await asyncio.to_thread(_page, f"{admin}/debug/endpoints")
        return rows, status, [each["address"] for each in endpoints["endpoints"] if each["inflight_requests"]]


def _plan(address: str, seed: int, measured_s: float) -> Plan:
    return Plan(
        address=address,
        model=MODEL,
        body_bytes=1024,  # of the plan's own requests, which are not sent
        seed=seed,
        connections=CONNECTIONS,
        warm_up_s=0.0,
        measured_s=measured_s,
        rate_per_s=0.0,
        is_chosen=True,
    )


async def _until_serving(plan: Plan, requests: Iterator[bytes]) -> None:
    result: Result | None = None
    for _ in range(_ATTEMPTS_TO_SERVE):  # until Envoy has found the sidecar healthy, requests pass without it
        result = await Load(plan, requests).run()
        if not result.errors:
            return
        await asyncio.sleep(0.2)
    raise SystemExit(f"Envoy does not serve: {result.first_error if result else ''}")


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def _late(admin: str) -> dict[float, float]:
    """How often the sidecar's loop was late so far, by the bound in seconds that the delay was within."""
    text = (await asyncio.to_thread(urllib.request.urlopen, f"{admin}/metrics")).read().decode()
    found = re.findall(r'^fairlead_event_loop_delay_seconds_bucket\{le="(\S+)"\} (\S+)', text, re.MULTILINE)
    counts = [(float(bound), float(count)) for bound, count in found]
    return {bound: count - below for (bound, count), (_, below) in zip(counts, [(0.0, 0.0), *counts], strict=False)}


def _page(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def faults(rows: Sequence[Minute], loaded: Sequence[str]) -> Iterator[str]:
    """What went wrong."""
    if errors := sum(row.errors for row in rows):
        yield f"{errors} requests failed; the first: {next(row.first_error for row in rows if row.errors)}"
    if loaded:
        yield f"load is left at {', '.join(loaded)}"
    warm = rows[WARM_UP_MINUTES - 1].sidecar_bytes if len(rows) > WARM_UP_MINUTES else 0
    for number, row in enumerate(rows[WARM_UP_MINUTES:], WARM_UP_MINUTES + 1):
        if abs(row.sidecar_bytes / warm - 1) > BAND:
            yield f"after minute {number} the sidecar held {row.sidecar_bytes / warm - 1:+.1%} of what it held warm"
            return


def text(facts: str, rows: Sequence[Minute], status: Any, found: Sequence[str]) -> str:
    after = [row.sidecar_bytes for row in rows[WARM_UP_MINUTES:]] or [rows[-1].sidecar_bytes]
    warm = rows[min(len(rows), WARM_UP_MINUTES) - 1].sidecar_bytes
    what = (__doc__ or "").partition("\n\n")[2].partition(" Writes")[0].replace("\n", " ").strip()
    summary = (
        f"- Requests: {sum(row.requests for row in rows):,}, failed: {sum(row.errors for row in rows)}; "
        f"decisions that the sidecar counted: {status['decisions']:,}\n"
        f"- Sidecar's memory after {WARM_UP_MINUTES} minutes: {warm / 2**20:.1f} MiB; from then on "
        f"{min(after) / warm - 1:+.1%} to {max(after) / warm - 1:+.1%}; the band is {BAND:.0%} either way\n"
        f"- Room: {MAX_SESSIONS:,} sessions, {MAX_PREFIX_BYTES >> 20} MiB of prefixes, so that both are full in the "
        "warm-up\n"
        f"- Verdict: {'; '.join(found) or 'flat, nothing lost, no load left behind'}"
    )
    heads = (
        "minute",
        "requests",
        "failed",
        "p50 ms",
        "p99 ms",
        "sidecar CPU µs",
        "sidecar MiB",
        "Envoy MiB",
        "open files",
        "loop late, within ms",
    )
    shown = (
        (
            number,
            f"{row.requests:,}",
            row.errors,
            f"{row.p50_us / 1e3:.1f}",
            f"{row.p99_us / 1e3:.1f}",
            f"{row.sidecar_cpu_us:.0f}",
            f"{row.sidecar_bytes / 2**20:.1f}",
            f"{row.envoy_bytes / 2**20:.1f}",
            row.sidecar_files,
            f"{row.loop_within_s * 1e3:g}",
        )
        for number, row in enumerate(rows, 1)
    )
    return f"# An hour at saturation\n\n{what}\n\n{facts}\n{summary}\n\n{table(heads, shown)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=_RESULTS)
    given = parser.parse_args()
    command = f"python benchmarks/soak.py --minutes {given.minutes} --seed {given.seed}"
    machine = this_machine()
    rows, status, loaded = uvloop.run(soak(given.minutes, given.seed))
    found = list(faults(rows, loaded))
    facts = machine_facts(command, given.seed, machine, os.getloadavg()[0])
    given.out.write_text(text(facts, rows, status, found))
    print(*[f"FAILED: {fault}" for fault in found] or ["flat"], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
