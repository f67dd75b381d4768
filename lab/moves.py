"""`make lab-moves`, `python -m lab.moves`: how long a real copy of KV takes, against computing the prompt again.

Two vLLM servers of the lab with Mooncake over TCP. Each prompt is computed once by the source and copied to the target;
then both continue from it, and their answers and probabilities are compared.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final, NamedTuple

import httpx

from fairlead.engines.kv_transfer import Deadlines, Party, Prompt, copy_kv
from fairlead.engines.mooncake import Mooncake
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from lab import command
from lab.engines import LabEngines
from lab.moving import OverMooncake
from lab.servers import BLOCK_TOKENS

_MODEL: Final = "heron"
_TOKENS: Final = (1024, 2048, 4096, 7168)
_PATIENT: Final = Deadlines(export_s=60.0, import_s=60.0)
_KV_BYTES_PER_TOKEN: Final = 2 * 2 * 4 * 32 * 2  # key and value, layers, heads, numbers each, bytes


class Moved(NamedTuple):
    tokens: int
    computed_s: float  # by the source, the first time
    copied_s: float  # export and import
    next_turn_s: float  # at the target, from its cache
    cached_tokens: int  # prompt tokens cached in that turn
    same_text: bool  # whether both answers are the same
    difference: float  # the largest between two log-probabilities of a token that both rank among their best five


def main() -> None:
    about = "Time a copy of KV between two real vLLM servers against computing the prompt again; some minutes."
    parser = command.parser("lab.moves", about, "--repeats 3")
    parser.add_argument("--repeats", type=command.at_least_one, default=7, metavar="N", help="of each prompt length")
    command.add_measurement(parser, "benchmarks/results/moves")
    options = parser.parse_args()
    with command.ending():
        out = command.results_folder(options.out)
        machine = this_machine()
        moved = asyncio.run(_measured(options.repeats, options.seed))
        asked = f"python -m lab.moves --repeats {options.repeats} --seed {options.seed}"
        command.show(_page(moved, machine_facts(asked, options.seed, machine, os.getloadavg()[0])), out / "moves.md")


async def _measured(repeats: int, seed: int) -> list[Moved]:
    rng = Random(seed)
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as folder:
        moving = OverMooncake(2)
        async with LabEngines((_MODEL, _MODEL), Path(folder), moving) as engines:
            source, target = (
                Party(engine.address, bootstrap)
                for engine, bootstrap in zip(engines.running, moving.bootstraps, strict=True)
            )
            async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
                return [
                    await _one(client, source, target, [rng.randrange(10, 1000) for _ in range(tokens)])
                    for tokens in _TOKENS
                    for _ in range(repeats)
                ]


async def _one(client: httpx.AsyncClient, source: Party, target: Party, ids: list[int]) -> Moved:
    _, computed_s = await _complete(client, source, ids)
    copied = await copy_kv(Mooncake(), source, target, Prompt(_MODEL, ids, BLOCK_TOKENS), _PATIENT)
    longer = [*ids, 5, 6, 7]
    there, next_turn_s = await _complete(client, target, longer)
    here, _ = await _complete(client, source, longer)
    cached = there["usage"]["prompt_tokens_details"]["cached_tokens"]
    copied_s = copied.seconds["export"] + copied.seconds["import"]
    same_text, difference = _compared(there["choices"][0], here["choices"][0])
    return Moved(len(ids), computed_s, copied_s, next_turn_s, cached, same_text, difference)


def _compared(one: dict[str, Any], other: dict[str, Any]) -> tuple[bool, float]:
    best = zip(one["logprobs"]["top_logprobs"], other["logprobs"]["top_logprobs"], strict=True)
    differences = [abs(these[token] - those[token]) for these, those in best for token in these.keys() & those.keys()]
    return one["text"] == other["text"], max(differences)


async def _complete(client: httpx.AsyncClient, party: Party, ids: Sequence[int]) -> tuple[dict[str, Any], float]:
    body = {"model": _MODEL, "prompt": list(ids), "max_tokens": 4, "temperature": 0, "ignore_eos": True, "logprobs": 5}
    began_s = time.monotonic()
    response = await client.post(f"http://{party.address}/v1/completions", json=body)
    return dict(response.raise_for_status().json()), time.monotonic() - began_s


def _page(moved: Sequence[Moved], facts: str) -> str:
    def ms(values: list[float]) -> str:
        return f"{median(values) * 1e3:.0f} ({min(values) * 1e3:.0f} to {max(values) * 1e3:.0f})"

    rows = []
    for tokens in _TOKENS:
        these = [each for each in moved if each.tokens == tokens]
        rows.append(
            (
                f"{tokens:,}",
                ms([each.computed_s for each in these]),
                ms([each.copied_s for each in these]),
                ms([each.next_turn_s for each in these]),
                f"{min(each.cached_tokens for each in these):,}",
                f"{sum(each.same_text for each in these)} of {len(these)}",
                f"{max(each.difference for each in these):.2g}",
            )
        )
    heads = (
        "Prompt tokens",
        "Computed, ms",
        "Copied, ms",
        "Next turn at the target, ms",
        "Cached of it",
        "Same text",
        "Largest difference",
    )
    return (
        "# A copy of KV between two real vLLM servers on a CPU\n\n"
        f"{facts}\n\n"
        "Median, least and most. Computed: by the source, with 4 tokens of answer. Copied: export and import over TCP. "
        "The next turn has 3 tokens more and 4 of answer. The largest difference is between two log-probabilities of "
        f"one token, at the source and at the target. This model has {_KV_BYTES_PER_TOKEN:,} bytes of KV a token and "
        "computes one in some 0.05 ms; an 8B model has 131,072 bytes, so only the order of steps is to be believed, "
        "not the ratio of the times.\n\n" + table(heads, rows) + "\n"
    )


if __name__ == "__main__":
    main()
