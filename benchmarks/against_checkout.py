"""Fairlead as it is now against Fairlead as it was: `python benchmarks/against_checkout.py CHECKOUT PYTHON`.

CHECKOUT is a worktree of the older commit, PYTHON the interpreter of its own environment (its lock, then
`pip install --no-deps --editable CHECKOUT`). Each side has the bootstrap that its own `fairlead envoy` writes and its
own `fairlead serve`; the Envoy binary, the upstream and the load generator are those of this checkout. In each round,
under each size of body, the two take turns, and ratios are made within a round. "At most" is the ratio that a sidecar
which took no time at all would reach, were the cores never idle: what Envoy, upstream and generator take stays.
Writes benchmarks/results/against_checkout.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import msgspec
import yaml

from fairlead.gateway import EnvoyProcess
from fairlead.processes import Child, free_ports
from fairlead.tools.bench.decision import MODEL
from fairlead.tools.bench.load import Plan, Result
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.processes import addresses_of, child, cpu_s
from fairlead.tools.estimates import spread

CONNECTIONS: Final = 16
SIZES_KIB: Final = (1, 64, 256)
LEAST_GAIN: Final = {1: 3.0, 64: 2.3, 256: 2.0}  # targets of the edge, in requests a second
THEN: Final = "then"
NOW: Final = "now"
_UPSTREAMS: Final = 8
_WARM_UP_S: Final = 0.5
_ATTEMPTS_TO_SERVE: Final = 50
_RESULTS: Final = Path(__file__).parent / "results" / "against_checkout.md"


class Side(NamedTuple):
    name: str
    address: str
    sidecar_pid: int
    envoy_pid: int
    upstream_pid: int  # of both


class Run(NamedTuple):
    round: int
    side: str
    size_kib: int
    requests_per_s: float
    sidecar_cpu_us: float  # a request
    envoy_cpu_us: float
    others_cpu_us: float  # upstream and load generator
    requests: int
    errors: int
    first_error: str


async def measure(pythons: dict[str, str], rounds: int, measured_s: float, seed: int) -> list[Run]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child("fairlead.tools.bench.upstream", str(_UPSTREAMS)))
        addresses = await addresses_of(upstream)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fairlead-against-")))
        sides = [await _side(stack, upstream.pid, addresses, folder, name, python) for name, python in pythons.items()]
        for side in sides:
            await _until_serving(side, seed)
        runs = []
        for number in range(rounds):
            for size_kib in SIZES_KIB:
                for side in sides if number % 2 else sides[::-1]:  # who goes first changes
                    run = await _run(number, side, size_kib, measured_s, seed)
                    print(*run, flush=True)
                    runs.append(run)
        return runs


async def _side(
    stack: AsyncExitStack, upstream_pid: int, addresses: list[str], folder: Path, name: str, python: str
) -> Side:
    grpc_port, admin_port, listen_port, envoy_admin = free_ports(4)
    address = f"127.0.0.1:{listen_port}"
    document = {
        "listen": {"grpc": f"127.0.0.1:{grpc_port}", "admin": f"127.0.0.1:{admin_port}"},
        "gateway": {"listen": address, "fallbacks": 2},
        "pool": {"endpoints": [{"address": each, "model": MODEL} for each in addresses]},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    own = {} if name == NOW else {"PYTHONPATH": ""}  # the older one is not to import this checkout
    fairlead = (python, "-m", "fairlead")
    sidecar = await stack.enter_async_context(
        Child(f"fairlead {name}", (*fairlead, "serve", "--config", str(path)), environment=own)
    )
    await sidecar.until_ready(f"http://127.0.0.1:{admin_port}/readyz")
    command = (*fairlead, "envoy", "--config", str(path), "--admin", f"127.0.0.1:{envoy_admin}")
    written = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True, env={**os.environ, **own}
    )
    tree = yaml.safe_load(written.stdout)
    envoy = await stack.enter_async_context(EnvoyProcess(tree, concurrency=1))
    return Side(name, address, sidecar.pid, envoy.pid, upstream_pid)


async def _run(number: int, side: Side, size_kib: int, measured_s: float, seed: int) -> Run:
    pids = (side.sidecar_pid, side.envoy_pid, side.upstream_pid)
    before_s = [cpu_s(pid) for pid in pids]
    result = await _load(side, size_kib, measured_s, seed)
    requests = max(1, result.requests)
    sidecar_us, envoy_us, upstream_us = (
        (cpu_s(pid) - before) * 1e6 / requests for pid, before in zip(pids, before_s, strict=True)
    )
    return Run(
        round=number,
        side=side.name,
        size_kib=size_kib,
        requests_per_s=result.measured / result.measured_s,
        sidecar_cpu_us=sidecar_us,
        envoy_cpu_us=envoy_us,
        others_cpu_us=upstream_us + result.cpu_s * 1e6 / requests,
        requests=result.requests,
        errors=result.errors,
        first_error=result.first_error,
    )


async def _load(side: Side, size_kib: int, measured_s: float, seed: int) -> Result:
    plan = Plan(
        address=side.address,
        model=MODEL,
        body_bytes=size_kib * 1024,
        seed=seed,
        connections=CONNECTIONS,
        warm_up_s=_WARM_UP_S,
        measured_s=measured_s,
        rate_per_s=0.0,
        is_chosen=True,
    )
    async with child("fairlead.tools.bench.load", msgspec.json.encode(plan).decode()) as generator:
        return msgspec.json.decode(await generator.output(), type=Result)


async def _until_serving(side: Side, seed: int) -> None:
    for _ in range(_ATTEMPTS_TO_SERVE):  # until Envoy has found the sidecar healthy, requests pass without it
        if not (await _load(side, 1, 0.1, seed)).errors:
            return
        await asyncio.sleep(0.2)
    raise SystemExit(f"{side.name} does not serve")


def text(facts: str, commit_then: str, runs: Sequence[Run]) -> str:
    rows, targets = [], []
    for size_kib in SIZES_KIB:
        of = {name: [r for r in runs if (r.side, r.size_kib) == (name, size_kib)] for name in (THEN, NOW)}
        for name, own in of.items():
            rows.append(
                (
                    f"{size_kib} KB",
                    name,
                    spread([r.requests_per_s for r in own]).text(),
                    spread([r.sidecar_cpu_us for r in own]).text(),
                    spread([r.envoy_cpu_us for r in own]).text(),
                    spread([r.sidecar_cpu_us + r.envoy_cpu_us for r in own]).text(),
                    spread([r.others_cpu_us for r in own]).text(),
                    spread([_cores(r) for r in own]).text(2),
                )
            )
        pairs = list(zip(of[NOW], of[THEN], strict=True))  # of the same round
        gain = spread([now.requests_per_s / then.requests_per_s for now, then in pairs])
        saved = [
            (then.sidecar_cpu_us + then.envoy_cpu_us) / (now.sidecar_cpu_us + now.envoy_cpu_us) for now, then in pairs
        ]
        holds = "holds" if gain.median >= LEAST_GAIN[size_kib] else "**missed**"
        possible = spread([_at_most(now) / then.requests_per_s for now, then in pairs])
        aim = f">= {LEAST_GAIN[size_kib]:g} times"
        targets.append((f"{size_kib} KB", aim, gain.text(2), holds, possible.text(2), spread(saved).text(2)))
    errors = sum(run.errors for run in runs)
    ended = (
        f"All {sum(run.requests for run in runs):,} requests were answered 200 by the chosen upstream."
        if not errors
        else f"**{errors} requests failed**; the first: {next(run.first_error for run in runs if run.errors)}"
    )
    rounds = max(run.round for run in runs) + 1
    what = (__doc__ or "").partition("\n\n")[2].partition(" Writes")[0].replace("\n", " ")
    return (
        f"# Against an older Fairlead\n\n{what}\n\n{facts}\n- Then: commit {commit_then}\n\n"
        f"{CONNECTIONS} connections, each with one request at a time; medians of {rounds} rounds with their least and "
        "most. Load generator, Envoy (one worker), sidecar and upstream are one process each and share the cores.\n\n"
        "## Gain\n\n"
        + table(
            ("Body", "Target", "Requests/s, now over then", "", "At most", "CPU of Envoy and sidecar, then over now"),
            targets,
        )
        + "\n\n## What a request costs\n\n"
        + table(
            ("Body", "", "Requests/s", "Sidecar CPU µs", "Envoy CPU µs", "Both µs", "Others µs", "Cores busy"), rows
        )
        + f"\n\n{ended}\n"
    )


def _cores(run: Run) -> float:
    return (run.sidecar_cpu_us + run.envoy_cpu_us + run.others_cpu_us) * run.requests_per_s / 1e6


def _at_most(run: Run) -> float:
    """Requests a second of all cores, if the sidecar took none of them."""
    return (os.cpu_count() or 1) * 1e6 / (run.envoy_cpu_us + run.others_cpu_us)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("python")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.5, help="of each pass")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    git = ("git", "-C", str(given.checkout), "rev-parse", "HEAD")
    commit_then = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    machine, started_s = this_machine(), time.monotonic()
    pythons = {THEN: given.python, NOW: sys.executable}
    runs = asyncio.run(measure(pythons, given.rounds, given.seconds, given.seed))
    command = (
        f"python benchmarks/against_checkout.py CHECKOUT PYTHON --rounds {given.rounds} --seconds {given.seconds:g} "
        f"--seed {given.seed}"
    )
    facts = machine_facts(command, given.seed, machine, os.getloadavg()[0])
    took = f"\n- It took: {time.monotonic() - started_s:.0f} s"
    written = text(facts + took, commit_then, runs)
    _RESULTS.write_text(written)
    print(written)
    return 1 if any(run.errors for run in runs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
