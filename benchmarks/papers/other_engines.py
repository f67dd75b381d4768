"""The default weights of `fairlead` on engines that no choice of weights has seen, beside those of before and rivals.

    python benchmarks/papers/other_engines.py      # five minutes on one core

Writes benchmarks/results/papers/other_engines.md. Weights are chosen in worlds of one kind of engine, and on other
seeds (`weights.py`). Load 1 is what `unified` serves of a trace at most.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec
from _contest import COLUMNS, HEADINGS, replayed, workload

from fairlead.tools.bench.machine import this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.origin import commit, date
from fairlead.tools.replay.policy_spec import faster_for, read_policy_spec
from fairlead.tools.replay.world import World, alike
from fairlead.tools.simulate.parameters import EngineParameters

OUT = Path("benchmarks/results/papers/other_engines.md")
SEEDS: Final = (200, 201)
TRACES: Final = ("azure", "short", "mooncake")
LOAD: Final = 0.75
BEFORE: Final = "fairlead:behind_weight=1"
POLICIES: Final = (BEFORE, "fairlead", "fairlead:behind_weight=4", "unified", "llm_d", "lmetric")
KINDS: Final[Mapping[str, World]] = {
    "4 as of a 70B model: 0.8 ms a prompt token, steps of 40 ms": alike(
        4, EngineParameters(prefill_ms_per_token=0.8, decode_ms_per_step=40.0, decode_ms_per_sequence=0.6), 300_000
    ),
    "4 as of a 1B model: 0.02 ms, 5 ms": alike(
        4, EngineParameters(prefill_ms_per_token=0.02, decode_ms_per_step=5.0, decode_ms_per_sequence=0.05), 1_000_000
    ),
    "12 with 64 requests a batch and 2,048 tokens a step": alike(
        12, EngineParameters(max_num_seqs=64, token_budget=2048), 200_000
    ),
    "8 as an H20: 0.21 ms, 6 ms": alike(
        8,
        EngineParameters(
            prefill_ms_per_token=0.21, decode_ms_per_step=6.0, decode_ms_per_sequence=0.1, token_budget=16384
        ),
        500_000,
    ),
}

Times = tuple[float, ...]  # in ms, of COLUMNS


def times(world: World, trace: str, policy: str, seed: int, faster: float) -> Times:
    found = replayed(world, workload(trace, seed), faster, policy, seed)
    return tuple(float(getattr(found, column)) for column in COLUMNS)


def gains(world: World, trace: str) -> dict[str, list[Times]]:
    """The logarithms of each policy's times over those of BEFORE, for each seed."""
    observed = msgspec.structs.replace(world.observation, learn_s=5.0)
    world = msgspec.structs.replace(world, observation=observed)
    faster = faster_for(LOAD, world, workload(trace, 0), read_policy_spec("unified"))
    found: dict[str, list[Times]] = {policy: [] for policy in POLICIES}
    for seed in SEEDS:
        ran = {policy: times(world, trace, policy, seed, faster) for policy in POLICIES}
        for policy, each in ran.items():
            found[policy].append(tuple(log(ms / base) for ms, base in zip(each, ran[BEFORE], strict=True)))
    return found


def cells(logs: Sequence[Times]) -> list[str]:
    return [f"{exp(fmean(column)):.2f}" for column in zip(*logs, strict=True)]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    ran = {}
    for kind, world in KINDS.items():
        for trace in TRACES:
            ran[kind, trace] = gains(world, trace)
            print(f"{kind}, {trace}: done", flush=True)
    heads = ("Policy", *(HEADINGS[column] for column in COLUMNS))
    overall = [(f"`{p}`", *cells([each for found in ran.values() for each in found[p]])) for p in POLICIES]
    rows = [(kind, trace, f"`{p}`", *cells(logs)) for (kind, trace), found in ran.items() for p, logs in found.items()]
    OUT.write_text(
        "\n\n".join(
            (
                "# `fairlead`'s weights on engines that no choice has seen",
                f"`python benchmarks/papers/other_engines.py`, commit {commit()}, {date()}, {this_machine().cpu}.",
                f"Seeds {', '.join(map(str, SEEDS))}; load {LOAD} of what `unified` serves. Times over those of the "
                "first row, whose weights were the default until `behind_weight` was 2: geometric means over seeds.",
                "## All of them",
                table(heads, overall),
                "## Each kind of engine and trace",
                table(("Engines", "Trace", *heads), rows),
            )
        )
        + "\n",
        encoding="utf-8",
    )
    print(OUT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
