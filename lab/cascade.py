"""`make lab-cascade`, `python -m lab.cascade`: a cascade of two real models with an exact-match judge.

The same questions go to the small model, to the large one, to a cascade of both, and to one that starts at the large
model where the capability table says that the small one fails. All through Envoy, each way from empty caches.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import httpx
import numpy as np

from fairlead.bench.machine import machine_facts, this_machine
from fairlead.bench.markdown import table
from fairlead.demo.children import ChildError
from fairlead.demo.traffic import client_of
from fairlead.errors import UserError
from lab import words
from lab.engines import LabEngines
from lab.pool import body_of, forget_prompts, known, running_front

SMALL, LARGE = "wren", "heron"
LANGUAGE: Final = "en"
LENGTHS_TOKENS: Final = (64, 128, 256, 512, 1024)
AT_A_TIME: Final = 4
SKIP_BELOW: Final = 0.3
_CASCADE: Final = {"cascade": [SMALL, LARGE], "thresholds": [50], "judge": {"function": "lab.exact:score"}}
ROUTES: Final = {"cascade": _CASCADE, "cascade that skips": {**_CASCADE, "skip_below": SKIP_BELOW}}
WAYS: Final = (SMALL, LARGE, *ROUTES)
_DRAWS: Final = 2000


class Took(NamedTuple):
    right: bool
    ms: float
    stage: str  # empty where no cascade answered


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.cascade",
        description="A cascade of two real models against each of them; some minutes.",
        epilog="Example: python -m lab.cascade --questions 200",
    )
    parser.add_argument("--questions", type=int, default=400, metavar="N", help="for each way")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed makes other questions")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/lab-cascade"), metavar="FOLDER")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            machine = this_machine()
            took = asyncio.run(_run(options.questions, options.seed))
        except (UserError, ChildError) as error:
            sys.exit(f"error: {error}")
        except OSError as error:
            sys.exit(f"error: --out {options.out}: cannot be written ({error.strerror}); name another folder")
        command = f"python -m lab.cascade --questions {options.questions} --seed {options.seed}"
        report = _markdown(machine_facts(command, options.seed, machine, os.getloadavg()[0]), took)
        (options.out / "cascade.md").write_text(report, encoding="utf-8")
        print(report)


async def _run(count: int, seed: int) -> dict[str, list[Took]]:
    rng = Random(f"cascade {seed}")
    questions = [words.question(rng, LANGUAGE, LENGTHS_TOKENS[i % len(LENGTHS_TOKENS)]) for i in range(count)]
    took: dict[str, list[Took]] = {}
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        folder = Path(name)
        async with (
            LabEngines([SMALL, LARGE], folder) as engines,
            running_front(engines, known(folder), "fairlead", folder, routes=ROUTES) as front,
            client_of(front.url) as client,
        ):
            for way in WAYS:
                await forget_prompts(engines)
                took[way] = await _ask_all(client, way, questions)
                print(way, *_row(took[way], took.get(LARGE)), sep="  ", flush=True)
    return took


async def _ask_all(client: httpx.AsyncClient, way: str, questions: Sequence[words.Question]) -> list[Took]:
    """AT_A_TIME side by side; the answers in the order of the questions."""
    took: list[Took | None] = [None] * len(questions)
    waiting = iter(enumerate(questions))

    async def ask_some() -> None:
        for number, question in waiting:  # one iterator for all
            took[number] = await _ask(client, way, question)

    await asyncio.gather(*[ask_some() for _ in range(AT_A_TIME)])
    return [each for each in took if each is not None]


async def _ask(client: httpx.AsyncClient, way: str, question: words.Question) -> Took:
    started_s = time.perf_counter()
    answer = await client.post("/v1/chat/completions", json=body_of(question, way))
    ms = 1e3 * (time.perf_counter() - started_s)
    answer.raise_for_status()
    text: Any = json.loads(answer.content)["choices"][0]["message"]["content"]
    return Took(question.is_right(text or ""), ms, answer.headers.get("x-fairlead-cascade-stage", ""))


def _row(took: Sequence[Took], large: Sequence[Took] | None) -> tuple[str, ...]:
    ms = np.array([each.ms for each in took])
    right = np.array([each.right for each in took], dtype=float)
    by_large = np.mean([each.stage == "2" for each in took]) if took[0].stage else None
    against = ("", "")
    if large is not None and large is not took:
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
    low, high = np.percentile(means, (2.5, 97.5))
    return f"{form.format(differences.mean())} ({form.format(low)} to {form.format(high)})"


def _markdown(facts: str, took: dict[str, list[Took]]) -> str:
    head = (
        "way", "right", "mean, ms", "median, ms", "accepted from the large", f"right, against {LARGE}, points",
        f"mean against {LARGE}, ms",
    )  # fmt: skip
    rows = [(way, *_row(each, took[LARGE])) for way, each in took.items()]
    note = (
        f"{len(took[SMALL])} questions in {LANGUAGE}, evenly over prompts of "
        f"{', '.join(map(str, LENGTHS_TOKENS))} tokens, {AT_A_TIME} at a time; {SMALL} and {LARGE} each on one vLLM "
        f"server on CPU. The judge is an exact match. `skip_below` is {SKIP_BELOW:g}. Intervals are 95 %, over paired "
        "questions."
    )
    return "\n".join(["# A cascade on real engines", "", facts, "", note, "", table(head, rows), ""])


if __name__ == "__main__":
    main()
