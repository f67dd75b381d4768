"""`make lab-calibration`, `python -m lab.calibration [MODEL]`: the simulated engine against a real one.

`fairlead calibrate` fits parameters to the times of a few batches on one real server. They are tested on requests they
were not fitted to: prompts of other lengths, more requests at once, and multi-turn sessions. Everything is repeated and
the shortest time counts: other load on the machine only adds time.
"""

from __future__ import annotations

import asyncio
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Final

import httpx
import msgspec

from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.demo.traffic import client_of
from fairlead.tools.replay.calibration import Calibrated, CalibrationFile, Case
from lab import command
from lab.__main__ import NAMES
from lab.calibration.load import OUTPUT_TOKENS, Session, at_once, converse, random_prompt, sessions_of
from lab.calibration.modelled import modelled
from lab.calibration.report import Conversed, markdown
from lab.engines import LabEngines
from lab.servers import BLOCK_TOKENS, MAX_MODEL_LEN
from lab.streamed import Took

_FITTED: Final = tuple(product((64, 256, 1024), (1, 2)))  # prompt tokens, requests at once
_OTHERS: Final = (*product((128, 512, 1536), (1, 2)), *product((64, 128, 256, 512, 1024, 1536), (4, 8)))
_BATCH_REPEATS, _SESSION_REPEATS = 15, 5
_SESSIONS, _TURNS = 40, 4
_AT_A_TIME: Final = (1, 4, 8)
_KV_TOKENS: Final = 1 << 20  # more than the sessions need: neither engine evicts
_COLUMNS: Final = ("model", "prompt_size", "batch_size", "token_size", "prompt_time", "token_time", "e2e_time")


def main() -> None:
    about = "Calibrate the simulated engine on a real vLLM server of the lab; some four minutes."
    parser = command.parser("lab.calibration", about, "stork --out calibration-of-stork")
    parser.add_argument("model", nargs="?", default="heron", choices=NAMES, metavar="MODEL", help=", ".join(NAMES))
    command.add_measurement(parser, "benchmarks/results/calibration")
    options = parser.parse_args()
    with command.ending():
        out = command.results_folder(options.out)
        machine = this_machine()
        sessions = sessions_of(Random(f"{options.seed} sessions"), _SESSIONS, _TURNS)
        batches, spread, real = asyncio.run(_measured(options.model, options.seed, sessions))
        fitted, others = batches[: len(_FITTED)], batches[len(_FITTED) :]
        _write(options.model, others, out / "held-out.csv")
        engine = _calibrated(options.model, fitted, out)
        parameters = replace(
            engine.parameters(),
            block_size=BLOCK_TOKENS,
            num_blocks=_KV_TOKENS // BLOCK_TOKENS,
            max_model_len=MAX_MODEL_LEN,
        )
        conversed = [Conversed(each, took, modelled(parameters, sessions, each)) for each, took in real.items()]
        asked = f"python -m lab.calibration {options.model} --seed {options.seed}"
        facts = machine_facts(asked, options.seed, machine, os.getloadavg()[0])
        command.show(markdown(options.model, facts, engine, fitted, others, spread, conversed), out / "calibration.md")


async def _measured(
    model: str, seed: int, sessions: Sequence[Session]
) -> tuple[list[Case], float, dict[int, list[Took]]]:
    """Measured on one real server: the batches and their spread, and the sessions by concurrency."""
    rng = Random(seed)
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        async with (
            LabEngines([model], Path(name)) as engines,
            client_of(f"http://{engines.running[0].address}") as client,
        ):
            batches, spread = await _batches(client, model, rng)
            return batches, spread, {each: await _conversed(client, model, sessions, each) for each in _AT_A_TIME}


async def _batches(client: httpx.AsyncClient, model: str, rng: Random) -> tuple[list[Case], float]:
    """For each kind of batch, the least of the repeats' means; repeats are spread over the whole run.

    Each time is minimised by itself: on a busy machine the first tokens of an answer may wait and come together with
    the last. Also returns the spread: by what factor the median repeat took longer than the shortest.
    """
    kinds = (*_FITTED, *_OTHERS)
    seen: dict[tuple[int, int], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for _, (prompt_tokens, batch) in product(range(_BATCH_REPEATS), kinds):
        took = await at_once(client, model, [random_prompt(rng, prompt_tokens) for _ in range(batch)])
        means = fmean(one.first_token_ms for one in took), fmean(one.total_ms for one in took)
        seen[prompt_tokens, batch].append(means)
    cases, spreads = [], []
    for (prompt_tokens, batch), times in seen.items():
        first_token_ms, total_ms = map(min, zip(*times, strict=True))
        spreads.append(median(total_ms for _, total_ms in times) / total_ms)
        token_ms = (total_ms - first_token_ms) / (OUTPUT_TOKENS - 1)
        cases.append(Case(prompt_tokens, OUTPUT_TOKENS, batch, first_token_ms, token_ms, total_ms))
    return cases, median(spreads)


async def _conversed(client: httpx.AsyncClient, model: str, sessions: Sequence[Session], at_a_time: int) -> list[Took]:
    """For each request, the shortest times of all repeats, which begin with an empty cache."""
    repeats = []
    for _ in range(_SESSION_REPEATS):
        (await client.post("/reset_prefix_cache")).raise_for_status()
        repeats.append(await converse(client, model, sessions, at_a_time))
    return [
        same[0]._replace(
            first_token_ms=min(one.first_token_ms for one in same), total_ms=min(one.total_ms for one in same)
        )
        for same in zip(*repeats, strict=True)
    ]


def _calibrated(model: str, cases: Sequence[Case], out: Path) -> Calibrated:
    """Calibrate with `fairlead calibrate`, as users do."""
    measurements, engines = out / "measurements.csv", out / "engines.json"
    _write(model, cases, measurements)
    command_line = [sys.executable, "-m", "fairlead", "calibrate", str(measurements), "--out", str(engines)]
    subprocess.run(command_line, check=True)
    return msgspec.json.decode(engines.read_bytes(), type=CalibrationFile).engines[model]


def _write(model: str, cases: Sequence[Case], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(_COLUMNS)
        for case in cases:
            times = (f"{ms:.3f}" for ms in (case.first_token_ms, case.token_ms, case.total_ms))
            rows.writerow((model, case.prompt_tokens, case.batch, case.output_tokens, *times))


if __name__ == "__main__":
    main()
