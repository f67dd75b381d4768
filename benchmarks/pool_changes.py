"""A pool that changes under load, through a real Envoy that is never restarted: `python -m benchmarks.pool_changes`.

Sixteen clients ask one after another while simulated engines come and go, listed by a file or by DNS. With Kubernetes
there are eight clients, engines that answer after 50 ms, and a real kube-apiserver with the pods of an InferencePool;
this program is their kubelet (`python -m tests.kubernetes.parts` builds the API server first). The table shows requests
lost, answers that the sidecar had no part in, how long after an engine was listed it first answered a request, and how
long after one was taken off the list the last request was sent that went there. Clients, engines, Envoy and the sidecar
share the machine. Writes benchmarks/results/pool_changes.md; some ten minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.processes import resident_bytes
from tests.kubernetes import changes as kubernetes
from tests.stack.changing import ChangingPool, changing_pool
from tests.waiting import until

CLIENTS: Final = 16
_RESULTS: Final = Path(__file__).parent / "results" / "pool_changes.md"
_HEAD: Final = ("change", "source", "requests", "lost", "unadvised", "new serves after", "gone is last chosen after")

Row = tuple[str, ...]


class Change:
    """What one change of the pool did to requests."""

    def __init__(self, pool: ChangingPool, what: str, source: str) -> None:
        self._pool, self._what, self._source = pool, what, source
        self._answers, self._lost = sum(pool.seen.statuses.values()), len(pool.seen.lost)
        self._unadvised = pool.seen.unadvised

    def row(self, new: Sequence[str], gone: Sequence[str], listed_s: float) -> Row:
        seen = self._pool.seen
        first = [seen.first_s[each] - listed_s for each in new]
        last = [max(0.0, seen.last_sent_s.get(each, 0.0) - listed_s) for each in gone]
        return (
            self._what,
            self._source,
            str(sum(seen.statuses.values()) - self._answers),
            str(len(seen.lost) - self._lost),
            str(seen.unadvised - self._unadvised),
            _times(first),
            _times(last),
        )


def _times(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    return f"{median(seconds) * 1e3:.0f} ms, worst {max(seconds) * 1e3:.0f} ms"


async def measure(folder: Path, source: str, most: int) -> list[Row]:
    rows = []
    async with changing_pool(folder, dns=source == "DNS") as pool:
        first = await pool.add(2)
        pool.lists(first)
        await pool.start()
        async with pool.load(CLIENTS) as seen:
            await until(lambda: set(first) <= set(seen.first_s), "both serve")

            more = await pool.add(most - 2)
            change = Change(pool, f"2 -> {most}", source)
            listed_s = pool.lists([*first, *more])
            await until(lambda: set(more) <= set(seen.first_s), "the new ones serve")
            rows.append(change.row(more, (), listed_s))

            left, gone = [*first, more[0]], more[1:]
            change = Change(pool, f"{most} -> 3", source)
            listed_s = pool.lists(left)
            await _settled(pool, left)
            rows.append(change.row((), gone, listed_s))
            await pool.stop(gone)

            new = await pool.add(3)
            change = Change(pool, "all 3 replaced at once", source)
            listed_s = pool.lists(new)
            await until(lambda: set(new) <= set(seen.first_s), "the newest serve")
            await _settled(pool, new)
            rows.append(change.row(new, left, listed_s))
            await pool.stop(left)

            change = Change(pool, "sidecar killed, 2 more meanwhile, back", source)
            pool.kill_sidecar()
            more = await pool.add(2)
            pool.lists([*new, *more])
            await asyncio.sleep(2)  # Envoy serves by itself for a while
            listed_s = time.monotonic()
            await pool.start_sidecar()
            await until(lambda: set(more) <= set(seen.first_s), "those that came meanwhile serve")
            rows.append(change.row(more, (), listed_s))
    return rows


async def _settled(pool: ChangingPool, left: Sequence[str]) -> None:
    async def settled() -> bool:
        return await pool.up() == set(left) == await pool.known_to_envoy()

    await until(settled, "sidecar and Envoy know only those that are left")
    answers = pool.seen.statuses[200]
    await until(lambda: pool.seen.statuses[200] > answers + 4 * CLIENTS, "clients go on")


async def memory(folder: Path, changes: int) -> str:
    """The sidecar's memory over `changes` of its pool, between two engines and two others."""
    async with changing_pool(folder) as pool:
        engines = await pool.add(4)
        sets = (engines[:2], engines[2:])
        pool.lists(sets[0])
        await pool.start()
        sizes = []
        async with pool.load(2):
            for number in range(changes):
                now = sets[number % 2]
                pool.lists(now)

                async def followed(now: Sequence[str] = now) -> bool:
                    return set(now) <= await pool.up()

                await until(followed, "the set is in force")
                if number % max(1, changes // 10) == 0:
                    sizes.append(resident_bytes(pool.pid))
        shown = ", ".join(f"{size / 1e6:.0f}" for size in sizes)
        return f"{changes} changes of the whole pool: {shown} MB; requests lost: {len(pool.seen.lost)}."


async def in_kubernetes(folder: Path) -> tuple[list[Row], str]:
    """The table's rows, and the sidecar's memory after each."""
    rows: list[Row] = []
    sizes = []
    async for row in kubernetes.rows(folder):
        new = _times([engine.served_after_s for engine in row.new])
        gone = _times([engine.last_chosen_after_s for engine in row.gone])
        rows.append((row.what, "Kubernetes", str(row.sent), str(row.lost.total()), str(row.unadvised), new, gone))
        sizes.append(f"{row.rss_mib:.0f}")
        print(rows[-1], dict(row.lost), flush=True)
    return rows, f"After each change in Kubernetes, in its order: {', '.join(sizes)} MiB."


async def main(most: int, changes: int) -> None:
    machine = this_machine()
    with TemporaryDirectory(prefix="fairlead-pool-") as folder:
        path = Path(folder) / "kubernetes"
        path.mkdir()
        rows, in_cluster = await in_kubernetes(path)
        for source, engines in (("file", most), ("DNS", min(most, 12))):
            path = Path(folder) / source
            path.mkdir()
            rows += await measure(path, source, engines)
        path = Path(folder) / "memory"
        path.mkdir()
        kept = await memory(path, changes)
    what = (__doc__ or "").partition("\n\n")[2].replace("\n", " ").strip()
    facts = machine_facts("python -m benchmarks.pool_changes", 0, machine, os.getloadavg()[0])
    sizes = f"Memory: {kept} {in_cluster}"
    text = f"# A pool that changes under load\n\n{what}\n\n{table(_HEAD, rows)}\n\n{sizes}\n\n{facts}\n"
    _RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=40, help="engines")
    parser.add_argument("--changes", type=int, default=200, help="of the pool, for memory")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.most, arguments.changes))
