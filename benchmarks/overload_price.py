"""What a short first token of chat costs in throughput when the pool is overloaded, in simulated time.

    python benchmarks/overload_price.py TRACE... > benchmarks/results/overload_price.md

The traffic, engines and tenants of benchmarks/overload.py. `share` is how much of each engine batch may fill (the
configuration's `share` of a band); chat may fill all. Throughput is over that without a gate at the same load, the p95
of chat over that at a load of 0.7 with the default share.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import fmean

from overload import ENGINES, SEEDS, WAIT_S, GateMaker, one, window

from fairlead.admission.admission import Rules
from fairlead.admission.limits import BandRules, QueueRules
from fairlead.tools.replay.gated import FairleadGate, NoGate
from fairlead.tools.replay.policy_spec import faster_for, read_policy_spec
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World, alike

QUIET, LOADS = 0.7, (1.0, 1.3)
DEFAULT_SHARE, SHARES = 0.8, (1.0, 0.8, 0.6, 0.4, 0.3, 0.2, 0.1)


def gate(share: float) -> GateMaker:
    bands = {0: BandRules("chat", longest_wait_s=WAIT_S), -1: BandRules("batch", share=share, longest_wait_s=WAIT_S)}
    return partial(FairleadGate, rules=Rules(QueueRules(bands=bands)))


def main(traces: list[str]) -> None:
    print("# What a short first token of chat costs under overload\n")
    print((__doc__ or "").split("\n\n", 2)[2])
    for trace in traces:
        world, (usual, title) = alike(ENGINES), window(trace)
        print(f"\n## {title}\n\nSeeds {', '.join(map(str, SEEDS))}.\n")

        def measured(
            load: float, make: GateMaker, world: World = world, usual: Workload = usual
        ) -> tuple[float, float, float]:
            faster = faster_for(load, world, usual, read_policy_spec("least_request"))
            runs = [one(world, usual.faster(faster), make, seed) for seed in SEEDS]
            return (
                fmean(run.ttft_p95_ms for run in runs),
                fmean(run.tokens_per_ms for run in runs),
                fmean(run.good for run in runs),
            )

        quiet_ms, _, _ = measured(QUIET, gate(DEFAULT_SHARE))
        print(f"Chat's p95 at a load of {QUIET:g}: {quiet_ms:,.0f} ms.\n")
        print("| load | share of batch | chat TTFT p95 ms | over that at 0.7 | tokens/ms | over no gate | good |")
        print("|---|---|---|---|---|---|---|")
        for load in LOADS:
            _, most, _ = measured(load, NoGate)
            for share in SHARES:
                p95_ms, tokens, good = measured(load, gate(share))
                ratios = f"{p95_ms / quiet_ms:.2f} | {tokens:,.1f} | {tokens / most:.3f}"
                print(f"| {load:g} | {share:g} | {p95_ms:,.0f} | {ratios} | {good:.1%} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="as `fairlead replay` reads them")
    main(parser.parse_args().traces)
