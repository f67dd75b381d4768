"""`make lab-cascade`, `python -m lab.cascade`: a cascade of two real models with an exact-match judge.

The same questions go to the small model, to the large one, to a cascade of both, and to one that starts at the large
model where the capability table says that the small one fails. All through Envoy, in rounds of a few questions each
way, always from empty caches: so other load on the machine affects all ways alike.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import httpx
import numpy as np

from fairlead.statistics import quantile
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.demo.traffic import client_of
from lab import command, words
from lab.engines import LabEngines
from lab.pool import body_of, forget_prompts, known, running_front

SMALL, LARGE = "wren", "crane"
LANGUAGE: Final = "en"
LENGTHS_TOKENS: Final = (64, 128, 256, 512, 1024)
AT_A_TIME: Final = (1, 4)
SKIP_BELOW: Final = 0.3
_CASCADE: Final = {"cascade": [SMALL, LARGE], "thresholds": [50], "judge": {"function": "lab.exact:score"}}
ROUTES: Final = {"cascade": _CASCADE, "cascade that skips": {**_CASCADE, "skip_below": SKIP_BELOW}}
WAYS: Final = (SMALL, LARGE, *ROUTES)
_ROUND: Final = 40  # questions
_DRAWS: Final = 2000


class Took(NamedTuple):
    right: bool
    ms: float
    stage: str  # empty if no cascade answered


ByWay = dict[str, list[Took]]


def main() -> None:
    about = "A cascade of two real models against each of them; some minutes."
    parser = command.parser("lab.cascade", about, "--questions 200")
    parser.add_argument(
        "--questions", type=command.at_least_one, default=400, metavar="N", help="for each way and load"
    )
    command.add_measurement(parser, "benchmarks/results/lab-cascade")
    options = parser.parse_args()
    with command.ending():
        out = command.results_folder(options.out)
        machine = this_machine()
        took = asyncio.run(_run(options.questions, options.seed))
        asked = f"python -m lab.cascade --questions {options.questions} --seed {options.seed}"
        command.show(_page(machine_facts(asked, options.seed, machine, os.getloadavg()[0]), took), out / "cascade.md")


async def _run(count: int, seed: int) -> dict[int, ByWay]:
    """The times of each way, by concurrency."""
    rng = Random(f"cascade {seed}")
    questions = [words.question(rng, LANGUAGE, LENGTHS_TOKENS[i % len(LENGTHS_TOKENS)]) for i in range(count)]
    took: dict[int, ByWay] = {}
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        folder = Path(name)
        async with (
            LabEngines([SMALL, LARGE], folder, quiet=True) as engines,
            running_front(engines, known(folder), "fairlead", folder, routes=ROUTES) as front,
            client_of(front.url) as client,
        ):
            for at_a_time in AT_A_TIME:
                took[at_a_time] = await _rounds(client, engines, questions, at_a_time)
    return took


async def _rounds(
    client: httpx.AsyncClient, engines: LabEngines, questions: Sequence[words.Question], at_a_time: int
) -> ByWay:
    took: ByWay = {way: [] for way in WAYS}
    for number, start in enumerate(range(0, len(questions), _ROUND)):
        first = number % len(WAYS)  # no way is always the first
        for way in (*WAYS[first:], *WAYS[:first]):
            await forget_prompts(engines)
            took[way] += await _ask_all(client, way, questions[start : start + _ROUND], at_a_time)
        print(f"{at_a_time} at a time, {len(took[SMALL])} of {len(questions)} questions", flush=True)
    return took


async def _ask_all(
    client: httpx.AsyncClient, way: str, questions: Sequence[words.Question], at_a_time: int
) -> list[Took]:
    """The answers in the order of the questions."""
    took: list[Took | None] = [None] * len(questions)
    waiting = iter(enumerate(questions))

    async def ask_some() -> None:
        for number, question in waiting:  # one iterator for all
            took[number] = await _ask(client, way, question)

    await asyncio.gather(*[ask_some() for _ in range(at_a_time)])
    return [each for each in took if each is not None]


async def _ask(client: httpx.AsyncClient, way: str, question: words.Question) -> Took:
    started_s = time.perf_counter()
    answer = await client.post("/v1/chat/completions", json=body_of(question, way))
    ms = 1e3 * (time.perf_counter() - started_s)
    answer.raise_for_status()
    text: Any = json.loads(answer.content)["choices"][0]["message"]["content"]
    return Took(question.is_right(text or ""), ms, answer.headers.get("x-fairlead-cascade-stage", ""))


def _row(took: Sequence[Took], large: Sequence[Took]) -> tuple[str, ...]:
    ms = np.array([each.ms for each in took])
    right = np.array([each.right for each in took], dtype=float)
    by_large = np.mean([each.stage == "2" for each in took]) if took[0].stage else None
    against = ("", "")
    if large is not took:
        against = (
            _interval(100 * (right - np.array([each.right for each in large], dtype=float)), "{:+.1f}"),
            _interval(ms - np.array([each.ms for each in large]), "{:+.0f}"),
        )
    share = "" if by_large is None else f"{by_large:.0%}"
    return (f"{right.mean():.1%}", f"{ms.mean():.0f}", f"{np.median(ms):.0f}", share, *against)


def _interval(differences: Any, form: str) -> str:
    """Mean of paired differences with its 95 % interval, by bootstrap over the questions."""
    rng = np.random.default_rng(0)
    means = rng.choice(differences, (_DRAWS, len(differences))).mean(axis=1)
    low, high = (quantile(means.tolist(), share) for share in (0.025, 0.975))
    return f"{form.format(differences.mean())} ({form.format(low)} to {form.format(high)})"


def _page(facts: str, took: dict[int, ByWay]) -> str:
    head = (
        "way", "right", "mean, ms", "median, ms", "accepted from the large", f"right, against {LARGE}, points",
        f"mean against {LARGE}, ms",
    )  # fmt: skip
    note = (
        f"{len(took[AT_A_TIME[0]][SMALL])} questions in {LANGUAGE}, evenly over prompts of "
        f"{', '.join(map(str, LENGTHS_TOKENS))} tokens, in rounds of {_ROUND} for each way in turn; {SMALL} and "
        f"{LARGE} each on one vLLM server on CPU. The judge is an exact match. `skip_below` is {SKIP_BELOW:g}. "
        "Intervals are 95 %, over paired questions."
    )
    lines = ["# A cascade on real engines", "", facts, "", note, ""]
    for at_a_time, ways in took.items():
        rows = [(way, *_row(each, ways[LARGE])) for way, each in ways.items()]
        side = "One question at a time" if at_a_time == 1 else f"{at_a_time} questions side by side"
        lines += [f"## {side}", "", table(head, rows), ""]
        rows = [
            (way, *(f"{_mean_ms(each, at):.0f}" for at in range(len(LENGTHS_TOKENS)))) for way, each in ways.items()
        ]
        lines += ["Mean by prompt length, ms:", "", table(("way", *map(str, LENGTHS_TOKENS)), rows), ""]
    return "\n".join(lines)


def _mean_ms(took: Sequence[Took], length: int) -> float:
    """The mean over the questions of the length with that index; lengths take turns."""
    return float(np.mean([each.ms for each in took[length :: len(LENGTHS_TOKENS)]]))


if __name__ == "__main__":
    main()
