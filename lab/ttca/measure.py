"""One measurement: the same questions under every policy, eight at a time, retried until right, repeat by repeat."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Final

import httpx
import msgspec

from fairlead.client import Retry, ask_async
from fairlead.tasks import all_of, while_running
from fairlead.tools.bench.machine import Machine, this_machine
from fairlead.tools.bench.routing.run import order
from fairlead.tools.demo.front import Front
from fairlead.tools.demo.learning import Learnt
from fairlead.tools.demo.traffic import ASKERS, MAX_ATTEMPTS, ROUTE, client_of
from lab import words
from lab.engines import LabEngines
from lab.pool import body_of, forget_prompts, running_front
from lab.ttca.learning import fit, record, right_by_cell

LENGTHS_TOKENS: Final = (64, 128, 256, 512, 1024)
OURS: Final = ("laar", "fairlead")
BASELINES: Final = ("least_request", "llm_d_load_aware", "session_affinity", "load_aware_exclude_tried")
POLICIES: Final = (*OURS, *BASELINES)

Report = Callable[[], None]


class Plan(msgspec.Struct, frozen=True):
    """The size of a measurement: questions in each cell, a cell being a language and a length."""

    servers: tuple[str, ...]  # ENGINE:MODEL
    learnt_from: int
    questions: int
    repeats: int
    seed: int

    @property
    def cells(self) -> int:
        return len(words.LANGUAGES) * len(LENGTHS_TOKENS)

    def steps(self) -> int:
        learning = self.learnt_from * self.cells * len(self.servers)
        return learning + self.questions * self.cells * self.repeats * len(POLICIES)


def model_of(server: str) -> str:
    return server.partition(":")[2]


class Try(msgspec.Struct, frozen=True, array_like=True):
    model: str
    ms: float
    right: bool


class Asked(msgspec.Struct, frozen=True):
    """One question under one policy."""

    policy: str
    repeat: int
    language: str
    length_tokens: int
    tries: tuple[Try, ...]
    faults: int

    @property
    def time_ms(self) -> float:
        """Time to the correct answer; if none was correct, the time of all attempts, a lower bound."""
        return sum(one.ms for one in self.tries)

    @property
    def right(self) -> bool:
        return self.tries[-1].right


class Results(msgspec.Struct, frozen=True):
    command: str
    plan: Plan
    machine: Machine
    load_average_after: float
    learnt_right: dict[str, dict[str, list[float]]]  # by model and language, for each of LENGTHS_TOKENS
    prefill_ms_per_token: dict[str, float]
    asked: tuple[Asked, ...]

    def of(self, policy: str) -> list[Asked]:
        """Results of a policy, in the same order of questions for every policy."""
        return [one for one in self.asked if one.policy == policy]


async def run(command: str, plan: Plan, out: Path, report: Report) -> Results:
    """Leaves the table of attempts and the fitted files in `out`. Raises ChildError if a part does not start."""
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="fairlead-ttca-") as name:
        folder = Path(name)
        async with LabEngines(plan.servers, folder, quiet=True) as engines:
            learning = halves(plan, "first", plan.learnt_from)
            table = out / "attempts.csv"
            async with running_front(engines, Learnt(None, {}, {}), OURS[0], folder) as front:
                await while_running(record(engines, front, learning, table, report), engines.ended(), front.ended())
            learnt = await fit(table, out)
            assert learnt.capability is not None
            (folder / learnt.capability.name).write_bytes(learnt.capability.read_bytes())
            asked: list[Asked] = []
            async with running_front(engines, learnt, POLICIES[0], folder) as front:
                for repeat in range(plan.repeats):
                    questions = halves(plan, f"second {repeat}", plan.questions)
                    for policy in order(POLICIES, repeat, plan.repeats):
                        await forget_prompts(engines)
                        await front.use(policy)
                        work = ask_all(front, questions, policy, repeat, report)
                        asked += await while_running(work, engines.ended(), front.ended())
    asked.sort(key=lambda one: one.repeat)  # stable: within a repeat, as the questions came
    right = right_by_cell(table, LENGTHS_TOKENS)
    return Results(command, plan, machine, os.getloadavg()[0], right, learnt.prefill_ms_per_token, tuple(asked))


def halves(plan: Plan, half: str, in_each_cell: int) -> list[words.Question]:
    """Questions of the first half, which is learnt from, or of a part of the second; no dictionary is in both."""
    rng = Random(f"{plan.seed} {half}")
    cells = [cell for cell in product(words.LANGUAGES, LENGTHS_TOKENS) for _ in range(in_each_cell)]
    rng.shuffle(cells)
    return [words.question(rng, language, length) for language, length in cells]


async def ask_all(
    front: Front, questions: Sequence[words.Question], policy: str, repeat: int, report: Report
) -> list[Asked]:
    """Each question is a session of its own. Results are in the order of `questions`."""
    asked: dict[int, Asked] = {}
    waiting = iter(enumerate(questions))

    async def asker(client: httpx.AsyncClient) -> None:
        for number, question in waiting:  # one iterator for all askers
            answer = await ask_async(
                client,
                body_of(question, ROUTE),
                question.is_right,
                retry=Retry(max_attempts=MAX_ATTEMPTS, stop_when_alike=False),
                session_id=f"{repeat}-{number}",
            )
            tries = tuple(Try(one.model, round(one.duration_ms, 3), one.correct) for one in answer.attempts)
            asked[number] = Asked(policy, repeat, question.language, question.length_tokens, tries, len(answer.faults))
            report()

    async with client_of(front.url) as client:
        await all_of(*[asker(client) for _ in range(ASKERS)])
    return [asked[number] for number in range(len(questions))]
