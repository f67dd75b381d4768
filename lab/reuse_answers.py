"""`make lab-answers`, `python -m lab.reuse_answers [MODEL]`: what context reuse does to answers of a real model.

The same questions go to one vLLM server as they are, and as context reuse would send them: in another order, with and
without the note on the order, with repeated documents as references, and both. A question asks for a value in one of
its documents, so each answer is right or wrong, and differences are paired by question.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from fairlead.context.blocks import DEFAULT_FORMATS
from fairlead.context.draft import Settings
from fairlead.context.reuse import ContextReuse
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from lab import command, words
from lab.__main__ import NAMES
from lab.engines import LabEngines

_NOTE: Final = "\nPlease read the context in the following priority order: "
_PAIRS: Final = 14  # of a document: one of 200 bytes is worth a reference
_DOCUMENTS: Final = 20
_LISTED: Final = 5  # in a question
_AT_A_TIME: Final = 4
_RESAMPLES: Final = 2000
_SINGLE: Final = "one question, 5 documents"
_TURNS: Final = "third turn, 3 documents a turn, some of them repeated"

Messages = list[dict[str, str]]


class Way(NamedTuple):
    name: str
    order: bool
    dedup: bool
    note: bool = True  # on the order


WAYS: Final = (
    Way("off", order=False, dedup=False),
    Way("order", order=True, dedup=False),
    Way("order, without its note", order=True, dedup=False, note=False),
    Way("dedup", order=False, dedup=True),
    Way("order and dedup", order=True, dedup=True),
)


class Asked(NamedTuple):
    session: str
    messages: Messages
    expected: str


def questions(kind: str, count: int, seed: int) -> Iterator[Asked]:
    """Documents are dictionaries of pairs whose keys stand in no other, and questions ask for a pair of one listed."""
    rng = Random(f"{kind} {seed}")
    keys, values = words.words("en")
    shuffled = iter(rng.sample(keys, _DOCUMENTS * _PAIRS))
    documents = [[(key, rng.choice(values)) for key in itertools.islice(shuffled, _PAIRS)] for _ in range(_DOCUMENTS)]
    topics = [rng.sample(range(_DOCUMENTS), 8) for _ in range(12)]  # lists overlap, as retrieved ones do

    def turn(listed: Sequence[int]) -> tuple[str, str]:
        blocks = [f'<document id="{n}">\n{_text(documents[n])}\n</document>' for n in listed]
        key, value = rng.choice(documents[rng.choice(listed)])
        inside = "\n".join(blocks)
        return f"{words.OPENING['en']}<documents>\n{inside}\n</documents>{words.CLOSE}{words.asked('en', key)}", value

    for number in range(count):
        topic, messages = rng.choice(topics), Messages()
        if kind == _SINGLE:
            text, expected = turn(rng.sample(topic, _LISTED))
            yield Asked(str(number), [_said("user", text)], expected)
            continue
        for last in (False, False, True):
            text, expected = turn(rng.sample(topic[:5], 3))
            messages.append(_said("user", text))
            if not last:
                messages.append(_said("assistant", expected))
        yield Asked(str(number), messages, expected)


def as_sent(way: Way, asked: Sequence[Asked], model: str) -> list[bytes]:
    """The requests' bodies, each shaped after those before it. Of a conversation each turn passes, as it would."""
    reuse = ContextReuse(clock_s=time.process_time, limit_s=1.0)
    return [_shaped(reuse, way, one, model) for one in asked]


def _shaped(reuse: ContextReuse, way: Way, asked: Asked, model: str) -> bytes:
    body = b""
    for turns in range(1, len(asked.messages) + 1, 2):
        body = msgspec.json.encode(
            {"model": model, "messages": asked.messages[:turns], "max_tokens": 4, "temperature": 0}
        )
        if not (way.order or way.dedup):
            continue
        plan = reuse.plan(body, Settings(way.order, way.dedup, DEFAULT_FORMATS), session=asked.session.encode())
        if plan is not None:
            reuse.commit(plan, plan.best)
            body = plan.forms[plan.best].body or body
    return body if way.note else _without_notes(body)


def _without_notes(body: bytes) -> bytes:
    document = msgspec.json.decode(body)
    for message in document["messages"]:
        before, note, after = message["content"].partition(_NOTE)
        message["content"] = before + after.partition("\n")[2] if note else before
    return msgspec.json.encode(document)


class Answers:
    """Of one server. What it was asked before is not asked again: at temperature 0 the answer is the same."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/v1/chat/completions"
        self._known: dict[bytes, str] = {}

    async def to(self, bodies: Sequence[bytes]) -> list[str]:
        waiting = iter([body for body in dict.fromkeys(bodies) if body not in self._known])
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:

            async def some() -> None:
                for body in waiting:
                    headers = {"content-type": "application/json"}
                    answer = (await client.post(self._url, content=body, headers=headers)).raise_for_status().json()
                    self._known[body] = str(answer["choices"][0]["message"]["content"]).strip()

            await asyncio.gather(*[some() for _ in range(_AT_A_TIME)])
        return [self._known[body] for body in bodies]


def interval(differences: Sequence[float], rng: Random) -> tuple[float, float]:
    """95 %, of the mean, by resampling."""
    means = sorted(sum(rng.choices(differences, k=len(differences))) / len(differences) for _ in range(_RESAMPLES))
    return means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES)]


async def _run(model: str, count: int, seed: int) -> list[tuple[str, ...]]:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        async with LabEngines([model], Path(name)) as engines:
            (engine,) = engines.running
            return await measured(engine.address, model, count, seed)


async def measured(address: str, model: str, count: int, seed: int) -> list[tuple[str, ...]]:
    rows, rng, answers = [], Random(seed), Answers(address)
    for kind in (_SINGLE, _TURNS):
        asked = list(questions(kind, count, seed))
        unchanged = as_sent(WAYS[0], asked, model)
        plain: list[bool] = []
        for way in WAYS:
            bodies = as_sent(way, asked, model)
            said = await answers.to(bodies)
            right = [text == one.expected for text, one in zip(said, asked, strict=True)]
            plain = plain or right
            rows.append(_row(kind, way, bodies, unchanged, right, plain, rng))
            print(*rows[-1], sep="  ", flush=True)
    return rows


def _row(
    kind: str, way: Way, bodies: Sequence[bytes], unchanged: Sequence[bytes], right: Sequence[bool],
    plain: Sequence[bool], rng: Random,
) -> tuple[str, ...]:  # fmt: skip
    changed = sum(one != other for one, other in zip(bodies, unchanged, strict=True))
    share = f"{sum(right) / len(right):.1%}"
    if way.name == "off":
        return kind, way.name, str(len(right)), "0", share, ""
    differences = [float(now) - float(before) for now, before in zip(right, plain, strict=True)]
    if not any(differences):  # resampling would show no doubt at all; 3 in n is the limit for what was never seen
        return kind, way.name, str(len(right)), str(changed), share, f"none, so within {300 / len(right):.1f}"
    low, high = interval(differences, rng)
    mean = sum(differences) / len(differences)
    return (
        kind,
        way.name,
        str(len(right)),
        str(changed),
        share,
        f"{100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})",
    )


def _text(pairs: Sequence[tuple[str, str]]) -> str:
    return words.NEXT.join(f"{key}{words.MIDDLE}{value}" for key, value in pairs)


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def main() -> None:
    about = "Right answers with and without context reuse; some five minutes."
    parser = command.parser("lab.reuse_answers", about, "crane --requests 100")
    parser.add_argument("models", nargs="*", default=["crane", "heron"], metavar="MODEL", help=", ".join(NAMES))
    parser.add_argument("--requests", type=command.at_least_one, default=300, metavar="N", help="of each kind and way")
    command.add_measurement(parser, "benchmarks/results/lab-reuse")
    options = parser.parse_args()
    with command.ending():
        out = command.results_folder(options.out)
        machine = this_machine()
        parts = [(model, asyncio.run(_run(model, options.requests, options.seed))) for model in options.models]
        asked = f"{' '.join(options.models)} --requests {options.requests} --seed {options.seed}"
        facts = machine_facts(f"python -m lab.reuse_answers {asked}", options.seed, machine, os.getloadavg()[0])
        command.show(_markdown(facts, parts), out / "answers.md")


def _markdown(facts: str, parts: Sequence[tuple[str, list[tuple[str, ...]]]]) -> str:
    heads = ("Requests", "Reuse", "Asked", "of them changed", "Right", "against off, points")
    tables = "\n\n".join(f"## {model}\n\n{table(heads, rows)}" for model, rows in parts)
    return f"""# What context reuse does to answers

{facts}

Tiny models of the lab on a real vLLM server (CPU), temperature 0. Documents hold {_PAIRS} pairs each; a question asks
for the value of a key in one of those that it lists, so guessing is right once in {words.VALUES}. Requests are
shaped by the code that the sidecar runs, each after those before it. Differences are paired by question; 95 %
intervals are by resampling questions.

{tables}

The models were trained on plain dictionaries. Tags, references and notes are a single unknown token to them: they
cannot follow a reference or a note, only look a key up wherever it stands. So this shows what it costs that documents
stand elsewhere, or in an earlier turn only; what a note or a reference gives to a model that reads it is not seen here.
"""


if __name__ == "__main__":
    main()
