"""`make lab-calibration`, `python -m lab.calibration [MODEL]`: the simulated engine against a real one.

Times of single batches on one real server become parameters through `fairlead calibrate`; then the same multi-turn
sessions go to the real server and to a simulated one with those parameters. Everything is done several times and the
shortest time of each counts: what else runs on the machine only adds, and it is not the engine's.
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
from statistics import fmean, median, quantiles
from typing import Final, NamedTuple

import httpx
import msgspec

from fairlead.bench.machine import machine_facts, this_machine
from fairlead.bench.markdown import table
from fairlead.demo.traffic import client_of
from fairlead.replay.calibration import CalibrationFile
from fairlead.simulate.server import EngineOptions, running_engine
from lab import command
from lab.__main__ import NAMES
from lab.calibration.load import OUTPUT_TOKENS, at_once, converse, random_prompt
from lab.engines import BLOCK_TOKENS, MAX_MODEL_LEN, LabEngines
from lab.streamed import Took

_PROMPT_TOKENS: Final = (64, 128, 256, 512, 1024)
_BATCHES: Final = (1, 2, 4)
_REPEATS: Final = 9
_SESSION_REPEATS: Final = 5
_SESSIONS, _TURNS, _AT_A_TIME = 40, 4, 4
_KV_TOKENS: Final = 1 << 20  # more than the sessions need: neither engine evicts
_COLUMNS: Final = ("model", "prompt_size", "batch_size", "token_size", "prompt_time", "token_time", "e2e_time")


class Compared(NamedTuple):
    real: list[Took]
    simulated: list[Took]


def main() -> None:
    about = "Calibrate the simulated engine on a real vLLM server of the lab; some minutes."
    parser = command.parser("lab.calibration", about, "stork --out calibration-of-stork")
    parser.add_argument("model", nargs="?", default="heron", choices=NAMES, metavar="MODEL", help=", ".join(NAMES))
    command.add_measurement(parser, "benchmarks/results/calibration")
    options = parser.parse_args()
    with command.ending():
        out = command.results_folder(options.out)
        machine = this_machine()
        compared, calibration = asyncio.run(_run(options.model, options.seed, out))
        asked = f"python -m lab.calibration {options.model} --seed {options.seed}"
        facts = machine_facts(asked, options.seed, machine, os.getloadavg()[0])
        command.show(_markdown(options.model, facts, compared, calibration), out / "calibration.md")


async def _run(model: str, seed: int, out: Path) -> tuple[Compared, CalibrationFile]:
    sessions = f"{seed} sessions"  # the same for both engines
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        async with (
            LabEngines([model], Path(name)) as engines,
            client_of(f"http://{engines.running[0].address}") as client,
        ):
            measured = await _measure(client, model, Random(seed))
            real = await _conversed(client, model, sessions)
    measurements, fitted = out / "measurements.csv", out / "engines.json"
    with measurements.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([_COLUMNS, *measured])
    command = [sys.executable, "-m", "fairlead", "calibrate", str(measurements), "--out", str(fitted)]
    await asyncio.to_thread(subprocess.run, command, check=True)
    calibration = msgspec.json.decode(fitted.read_bytes(), type=CalibrationFile)
    parameters = replace(
        calibration.engines[model].parameters(),
        block_size=BLOCK_TOKENS,
        num_blocks=_KV_TOKENS // BLOCK_TOKENS,
        max_model_len=MAX_MODEL_LEN,
    )
    async with (
        running_engine(EngineOptions(model=model, parameters=parameters)) as engine,
        client_of(f"http://{engine.address}") as client,
    ):
        simulated = await _conversed(client, model, sessions)
    return Compared(real, simulated), calibration


async def _conversed(client: httpx.AsyncClient, model: str, seed: str) -> list[Took]:
    """Of each request the shortest of all repeats, which begin with an empty cache."""
    repeats = []
    for _ in range(_SESSION_REPEATS):
        (await client.post("/reset_prefix_cache")).raise_for_status()
        repeats.append(await converse(client, model, Random(seed), _SESSIONS, _TURNS, _AT_A_TIME))
    return [_shortest(same) for same in zip(*repeats, strict=True)]


def _shortest(same: Sequence[Took]) -> Took:
    """Each time is the least of all; what was cached is the same in every repeat."""
    first_token_ms, total_ms = min(one.first_token_ms for one in same), min(one.total_ms for one in same)
    return same[0]._replace(first_token_ms=first_token_ms, total_ms=total_ms)


async def _measure(client: httpx.AsyncClient, model: str, rng: Random) -> list[tuple[object, ...]]:
    """Rows of `fairlead calibrate`: one for each kind of batch, of means over its requests the least of all repeats.

    Each time by itself: on a busy machine the first tokens of an answer may wait and come together with the last.
    """
    rows: list[tuple[object, ...]] = []
    for prompt_tokens, batch in product(_PROMPT_TOKENS, _BATCHES):
        repeats = [
            await at_once(client, model, [random_prompt(rng, prompt_tokens) for _ in range(batch)])
            for _ in range(_REPEATS)
        ]
        first_token_ms = min(fmean(one.first_token_ms for one in took) for took in repeats)
        total_ms = min(fmean(one.total_ms for one in took) for took in repeats)
        token_ms = (total_ms - first_token_ms) / (OUTPUT_TOKENS - 1)
        times = (f"{ms:.3f}" for ms in (first_token_ms, token_ms, total_ms))
        rows.append((model, prompt_tokens, batch, OUTPUT_TOKENS, *times))
    return rows


def _markdown(model: str, facts: str, compared: Compared, calibration: CalibrationFile) -> str:
    fitted, simulated, real = calibration.engines[model], compared.simulated, compared.real
    engine = table(
        ("ms a prompt token", "ms a step", "ms a step and sequence", "ms of overhead a step"),
        [
            (
                f"{fitted.prefill_ms_per_token:.4f}",
                f"{fitted.decode_ms_per_step:.2f}",
                f"{fitted.decode_ms_per_sequence:.2f}",
                f"{fitted.step_overhead_ms:.2f}",
            )
        ],
    )
    rows = [
        _row("time to first token, ms", *([one.first_token_ms for one in took] for took in (real, simulated))),
        _row("time to the end, ms", *([one.total_ms for one in took] for took in (real, simulated))),
    ]
    shares = [sum(one.cached_tokens for one in took) / sum(one.prompt_tokens for one in took) for took in compared]
    return f"""# The simulated engine against a real one

{facts}

One vLLM server with {model} on CPU. {len(_PROMPT_TOKENS)} prompt lengths in batches of {_BATCHES[0]} to \
{_BATCHES[-1]}, the shortest of {_REPEATS} times each, {OUTPUT_TOKENS} tokens to an answer, gave these parameters \
(`engines.json`, by `fairlead calibrate`):

{engine}

On batches that the fit had not seen, the engine model is off by {fitted.first_token_error.median:.0%} for the first \
token and by {fitted.total_error.median:.0%} for the whole answer (medians).

Then {_SESSIONS} sessions of {_TURNS} turns, {_AT_A_TIME} at a time, each turn repeating the prompt before: the same \
token ids to the real server and to the simulated one, {_SESSION_REPEATS} times from an empty cache. Of each request \
the shortest time counts, of either engine: what else ran on the machine (see the load averages) only adds, and is not \
the engine's.

{table(("", "real p50", "simulated p50", "error", "real p95", "simulated p95", "error"), rows)}

The engine model has no fixed cost of a request (HTTP, the API server's work), some milliseconds on a CPU, which first \
tokens of short prompts show; and it takes the engine to have its cores to itself.

Cached share of prompt tokens: real {shares[0]:.2%}, simulated {shares[1]:.2%}, off by {abs(shares[1] - shares[0]):.2%}.
"""


def _row(name: str, real: Sequence[float], simulated: Sequence[float]) -> tuple[str, ...]:
    def both(of_real: float, of_simulated: float) -> tuple[str, str, str]:
        return f"{of_real:.0f}", f"{of_simulated:.0f}", f"{of_simulated / of_real - 1:+.0%}"

    return (name, *both(median(real), median(simulated)), *both(_p95(real), _p95(simulated)))


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1]


if __name__ == "__main__":
    main()
