"""`python -m tests.fuzz --seconds 3600 --seed 1`: see CONTRIBUTING.md. Ends 1 where something broke."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys

from tests.fuzz.attacks import FAMILIES, Step
from tests.fuzz.fuzz import fuzz, repeat


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz of a running sidecar.")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--only", choices=FAMILIES, action="append", help="these kinds of attack")
    parser.add_argument("--step", metavar="KIND:NUMBER", help="repeat one step of the seed against a fresh sidecar")
    given = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if given.seed is None else given.seed
    if given.step is not None:
        family, _, number = given.step.partition(":")
        faults = asyncio.run(repeat(Step(family, int(number), seed), sys.stdout))
        print(*[f"FAILED: {fault}" for fault in faults] or ["nothing broke"], sep="\n")
        return 1 if faults else 0
    report = asyncio.run(fuzz(given.seconds, seed, given.only or tuple(FAMILIES), sys.stdout))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
