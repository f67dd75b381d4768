"""One run of the benchmark, part by part."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, get_args

from fairlead.statistics import quantile
from fairlead.tools.bench.machine import this_machine
from fairlead.tools.bench.reuse.contextpilot import Contextpilot
from fairlead.tools.bench.reuse.conversations import Layout, prefilled
from fairlead.tools.bench.reuse.lists import SYNTHETIC, read_lists, synthetic, top_fifth
from fairlead.tools.bench.reuse.report import Report
from fairlead.tools.bench.reuse.shares import all_shares
from fairlead.tools.bench.reuse.speed import BUILD_SIZES, QUICK_SIZES, REQUESTS, builds, steps

_CONTEXTPILOT_MOST: Final = 2000


def run(
    command: str, lists_path: Path, contextpilot: Path | None, seed: int, quick: bool, say: Callable[[str], None]
) -> Report:
    """Raises UserError for files that cannot be read."""
    machine = this_machine()
    rival = Contextpilot(contextpilot) if contextpilot is not None else None
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
    for build in builds(seed, QUICK_SIZES if quick else BUILD_SIZES, rival, _CONTEXTPILOT_MOST):
        say(f"built an index of {build.contexts:,} contexts")
        built.append(build)
    rival_us = rival.online_us if rival is not None else []
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
