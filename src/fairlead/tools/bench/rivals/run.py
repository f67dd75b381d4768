"""One run of the comparison: install what is missing, measure, and say how far it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import uvloop

from fairlead.tools.bench.machine import this_machine
from fairlead.tools.bench.rivals.install import UnavailableError, installed
from fairlead.tools.bench.rivals.measure import Effort, measure
from fairlead.tools.bench.rivals.pins import PINS, Pin
from fairlead.tools.bench.rivals.report import Report
from fairlead.tools.study import progress_bar

FULL: Final = Effort(rounds=3, measured_s=0.4)
QUICK: Final = Effort(rounds=1, measured_s=0.25, bodies_kib=(1, 64), connections=(1, 16))


def run(command: str, seed: int, effort: Effort) -> Report:
    """Measure this machine. A rival that cannot be installed is in the report, with the reason."""
    machine = this_machine()
    rivals: dict[Pin, Path | UnavailableError] = {}
    with progress_bar("") as progress:
        task = progress.add_task("installing", total=len(PINS))
        for pin in PINS:
            progress.update(task, description=f"installing {pin.title}")
            try:
                rivals[pin] = installed(pin)
            except UnavailableError as error:
                rivals[pin] = error
            progress.advance(task)
        progress.update(task, description="installed")
        task = progress.add_task("passes", total=effort.passes())
        measured = uvloop.run(measure(effort, rivals, seed, lambda: progress.advance(task)))
    return Report(command, seed, machine, os.getloadavg()[0], measured)
