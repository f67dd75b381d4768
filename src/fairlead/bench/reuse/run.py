"""One run of the benchmark, part by part."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, get_args

from fairlead.bench.machine import this_machine
from fairlead.bench.numbers import quantile
from fairlead.bench.reuse.conversations import Layout, prefilled
from fairlead.bench.reuse.lists import SYNTHETIC, read_lists, synthetic, top_fifth
from fairlead.bench.reuse.report import Report
from fairlead.bench.reuse.rival import Rival
from fairlead.bench.reuse.shares import all_shares
from fairlead.bench.reuse.speed import BUILD_SIZES, QUICK_SIZES, REQUESTS, builds, steps

_RIVAL_MOST: Final = 2000


def run(
    command: str, lists_path: Path, contextpilot: Path | None, seed: int, quick: bool, say: Callable[[str], None]
) -> Report:
    """Raises UserError for files that cannot be read."""
    machine = this_machine()
    rival = Rival(contextpilot) if contextpilot is not None else None
    real = read_lists(lists_path)
    made = synthetic(REQUESTS, seed)
    shares, whole = [], []
    for name, lists in (real | {SYNTHETIC: made}).items():
        say(f"hit shares: {name}")
        shares += all_shares(name, lists, rival)
    for name, lists in list(real.items())[: 1 if quick else None]:
        say(f"tokens to compute: {name}")
        for layout in get_args(Layout):
            whole += prefilled(name, lists, layout, seed)
    say("time of a request")
    timed = steps(seed)
    built = []
    for build in builds(seed, QUICK_SIZES if quick else BUILD_SIZES, rival, _RIVAL_MOST):
        say(f"built an index of {build.contexts:,} contexts")
        built.append(build)
    rival_us = sorted(rival.online_us) if rival is not None else []
    return Report(
        command=command,
        seed=seed,
        machine=machine,
        load_average_after=os.getloadavg()[0],
        rival=rival.version if rival is not None else None,
        top_fifth=top_fifth(made),
        shares=shares,
        prefilled=whole,
        steps=timed,
        rival_p50_us=quantile(rival_us, 0.5) if rival_us else None,
        rival_p99_us=quantile(rival_us, 0.99) if rival_us else None,
        builds=built,
    )
