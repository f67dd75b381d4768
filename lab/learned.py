"""`make lab-learned`, `python -m lab.learned [ENGINE:MODEL...]`: what the sidecar learns of engines with default flags.

Each server stands alone behind Envoy and the sidecar, with its default flags, and gets conversations, streamed and
whole, one at a time and several at once. Between them the idle server itself is asked new prompts one by one: a
calibration of the same minutes, as other load on the machine slows both down alike. It goes by whole answers, of one
token and of many: on a busy machine the first tokens of a stream may wait, and come together with its last. A token
that follows a long context takes twice as long on a CPU as one that follows a short one, so decoding is calibrated on
prompts as long as those of the conversations.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, product
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import httpx

from fairlead.engines.introduction import discover
from fairlead.tasks import while_running
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.demo.front import Front
from fairlead.tools.demo.learning import Learnt
from fairlead.tools.demo.traffic import client_of
from fairlead.tools.study import progress_bar
from lab import command, words
from lab.__main__ import add_models, models_of
from lab.engines import LabEngine, LabEngines
from lab.pool import START_MS_PER_TOKEN
from lab.streamed import streamed

BY_DEFAULT: Final = ("vllm:crane", "sglang:crane")  # the largest: least of its times is the servers' own
WITHIN: Final = 0.2  # of a calibrated constant
CHAT: Final = "/v1/chat/completions"
OUTPUT_TOKENS: Final = 33
CALIBRATED: Final = (64, 384, 768, 1152)  # tokens of new prompts, whose answers are of one token
_EACH: Final = 6  # of these, a round
_DECODED: Final = 2  # prompts of conversations, for each part of the calibration
_LASTING: Final = 3  # rounds, whose answers most of what was learned comes from
_AT_A_TIME: Final = (1, 4)
_PARTS: Final = len(_AT_A_TIME) + 1  # of a round's calibration: before, between and after the traffic
_SESSIONS, _TURNS = 4, 3  # for each of these, a round
_FAR_TOKENS: Final = 256  # prompts whose lengths differ
_FIRST_TOKENS, _NEXT_TOKENS = (64, 1024), (32, 256)

_DECODING: Final = ((1, False), (1, True), (OUTPUT_TOKENS, True))  # tokens of answers to one prompt; it is cached

Messages = list[dict[str, str]]


class Constants(NamedTuple):
    """Milliseconds per token."""

    prefill_ms: float
    decode_ms: float


class Whole(NamedTuple):
    """An answer in one piece."""

    prompt_tokens: int
    answer_tokens: int
    ms: float
    is_cached: bool = False  # the server answered its prompt just before


class Round(NamedTuple):
    calibration: tuple[Whole, ...]
    learned: Constants | None  # in force at its end; None while one of them is not known


def main() -> None:
    about = "Constants that the sidecar learns of real engines with default flags, against a calibration; some minutes."
    parser = command.parser("lab.learned", about, "sglang:wren --rounds 4 --out learned-of-wren")
    add_models(parser, BY_DEFAULT)
    parser.add_argument(
        "--rounds", type=command.at_least_one, default=8, metavar="N", help="of traffic, for each server"
    )
    command.add_measurement(parser, "benchmarks/results/lab-learned")
    options = parser.parse_args()
    servers = models_of(parser, options.models or BY_DEFAULT, "vllm")
    with command.ending():
        out = command.results_folder(options.out)
        machine = this_machine()
        measured = _measured(servers, options.rounds, options.seed)
        named = "".join(f"{each} " for each in options.models)
        asked = f"python -m lab.learned {named}--rounds {options.rounds} --seed {options.seed}"
        facts = machine_facts(asked, options.seed, machine, os.getloadavg()[0])
        command.show(markdown(facts, measured), out / "learned.md")


def _measured(servers: Sequence[str], rounds: int, seed: int) -> dict[str, list[Round]]:
    each_round = len(CALIBRATED) * _EACH + 3 * _DECODED * _PARTS + len(_AT_A_TIME) * _SESSIONS * _TURNS
    measured = {}
    with progress_bar("requests") as progress:
        for server in servers:
            task = progress.add_task(server, total=rounds * each_round)
            report = partial(progress.advance, task)
            measured[server] = asyncio.run(_rounds(server, rounds, Random(f"{seed} {server}"), report))
    return measured


async def _rounds(server: str, rounds: int, rng: Random, report: Callable[[], None]) -> list[Round]:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        folder = Path(name)
        async with LabEngines([server], folder, observable=False) as engines:
            engine = engines.running[0]
            learnt = Learnt(None, {engine.model: START_MS_PER_TOKEN}, {})
            async with (
                Front(await discover([engine.address]), learnt, "fairlead", folder) as front,
                client_of(front.url) as client,
                client_of(front.admin_url) as admin,
                client_of(f"http://{engine.address}") as direct,
            ):
                measured = []
                for _ in range(rounds):
                    work = _round(engine, rng, client, direct, admin, report)
                    measured.append(await while_running(work, engines.ended(), front.ended()))
                return measured


async def _round(
    engine: LabEngine,
    rng: Random,
    client: httpx.AsyncClient,
    direct: httpx.AsyncClient,
    admin: httpx.AsyncClient,
    report: Callable[[], None],
) -> Round:
    """A part of the calibration before, between and after the two parts of the traffic."""
    took = await _calibrate(direct, engine.model, rng, report)
    for at_a_time in _AT_A_TIME:
        await _converse(client, engine.model, rng, at_a_time, report)
        took += await _calibrate(direct, engine.model, rng, report)
    seen = (await admin.get("/debug/endpoints")).json()["endpoints"][0]
    prefill, decode = seen["prefill"], seen["decode"]
    is_known = prefill["learned"] and decode["learned"]
    # What a token adds from the shortest to the longest of the calibration's prompts.
    prefill_ms = prefill["ms_per_token"] * (1 + seen["prefill_growth_per_1k"] * (CALIBRATED[0] + CALIBRATED[-1]) / 2e3)
    return Round(tuple(took), Constants(prefill_ms, decode["ms_per_token"]) if is_known else None)


async def _calibrate(client: httpx.AsyncClient, model: str, rng: Random, report: Callable[[], None]) -> list[Whole]:
    async def ask(messages: Messages, output_tokens: int, *, is_cached: bool) -> Whole:
        started_s = time.perf_counter()
        response = await client.post(CHAT, json=_body(model, messages, output_tokens))
        took_ms = (time.perf_counter() - started_s) * 1e3
        usage = response.raise_for_status().json()["usage"]
        report()
        return Whole(usage["prompt_tokens"], usage["completion_tokens"], took_ms, is_cached)

    new = product(range(_EACH // _PARTS), CALIBRATED)
    took = [await ask([_user(rng, length)], 1, is_cached=False) for _, length in new]
    for _ in range(_DECODED):
        messages = rng.choice(list(_turns(rng)))
        took += [await ask(messages, tokens, is_cached=known) for tokens, known in _DECODING]
    return took


def calibrated(took: Sequence[Whole]) -> Constants:
    """Prefill is the median slope of answers of one token over new prompts. Decoding is the mean, over prompts that the
    server has cached, of what an answer takes beyond one of one token: contexts differ in it, and all of them count.
    """
    first = [one for one in took if one.answer_tokens == 1 and not one.is_cached]
    prefill = [
        (one.ms - other.ms) / (one.prompt_tokens - other.prompt_tokens)
        for one, other in combinations(first, 2)
        if abs(one.prompt_tokens - other.prompt_tokens) >= _FAR_TOKENS
    ]
    cached = [one for one in took if one.is_cached]
    pairs = zip(cached[::2], cached[1::2], strict=True)
    decode = [(many.ms - one.ms) / (many.answer_tokens - 1) for one, many in pairs]
    return Constants(median(prefill), fmean(decode))


async def _converse(
    client: httpx.AsyncClient, model: str, rng: Random, at_a_time: int, report: Callable[[], None]
) -> None:
    """Conversations, every other one streamed; each turn repeats those before it."""
    waiting = iter([(number % 2 == 0, list(_turns(rng))) for number in range(_SESSIONS)])

    async def asker() -> None:
        for is_streamed, turns in waiting:  # one iterator for all
            for messages in turns:
                body = _body(model, messages)
                if is_streamed:
                    await streamed(client, CHAT, body)
                else:
                    (await client.post(CHAT, json=body)).raise_for_status()
                report()

    await asyncio.gather(*[asker() for _ in range(at_a_time)])


def _turns(rng: Random) -> Iterator[Messages]:
    messages = [_user(rng, rng.randrange(*_FIRST_TOKENS))]
    for turn in range(_TURNS):
        if turn:
            messages += [
                {"role": "assistant", "content": words.question(rng, "en", OUTPUT_TOKENS).prompt},
                _user(rng, rng.randrange(*_NEXT_TOKENS)),
            ]
        yield list(messages)


def _user(rng: Random, length: int) -> dict[str, str]:
    return {"role": "user", "content": words.question(rng, "en", length).prompt}


def _body(model: str, messages: Messages, output_tokens: int = OUTPUT_TOKENS) -> dict[str, Any]:
    return {"model": model, "messages": messages, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}


def of_the_same_time(rounds: Sequence[Round]) -> list[Constants]:
    """For each round the calibration of the rounds whose answers count in what is in force at its end."""
    ends = range(1, len(rounds) + 1)
    parts = [[one for each in rounds[max(0, end - _LASTING) : end] for one in each.calibration] for end in ends]
    return [calibrated(part) for part in parts]


def errors(rounds: Sequence[Round]) -> list[Constants]:
    """Relative, of each round at whose end both constants were known."""
    return [
        Constants(*[ours / theirs - 1 for ours, theirs in zip(each.learned, found, strict=True)])
        for each, found in zip(rounds, of_the_same_time(rounds), strict=True)
        if each.learned is not None
    ]


def markdown(facts: str, measured: dict[str, list[Round]]) -> str:
    conversations, prompts, decoded = len(_AT_A_TIME) * _SESSIONS, len(CALIBRATED) * _EACH, _DECODED * _PARTS
    heads = ("server", "round", "prefill calibrated, ms", "learned", "decoding calibrated, ms", "learned")
    return f"""# What is learned of engines with default flags, against a calibration

{facts}

Each server alone on CPU behind Envoy and the sidecar, without any flag but those that the machine needs: no answer \
says which prompt tokens were cached, SGLang has no metrics, and neither publishes KV events. In each round the \
sidecar sees {conversations} conversations of {_TURNS} turns, half of them streamed, \
{" and ".join(map(str, _AT_A_TIME))} at a time, {OUTPUT_TOKENS} tokens to an answer. Before, between and after them \
the idle server itself is asked {prompts} new prompts of 64 to 1,152 tokens, one by one, and {decoded} prompts of \
conversations, each until it is cached and then for answers of 1 and of {OUTPUT_TOKENS} tokens. Prefill is the \
median slope of answers of one token over new prompts, decoding the mean of what a further token of an answer takes.

{table(("server", "of a token", "calibrated, ms", "learned, ms", "error", f"within {WITHIN:.0%}"), _summary(measured))}

Medians over rounds. The error is of what was in force at a round's end against the calibration of that round and the \
{_LASTING - 1} before it, whose answers are most of what the sidecar goes by; in brackets the least and the greatest.

## By round

{table(heads, _rows(measured))}

Prefill as learned is what a token adds from the shortest to the longest of the new prompts. In the sidecar's model a \
token of an answer costs the same wherever it stands; here those after a long context cost more. \
Other load on the machine (see the load averages) is in both, as far as it lasts.
"""


def _summary(measured: dict[str, list[Round]]) -> Iterator[tuple[str, ...]]:
    for server, rounds in measured.items():
        found = errors(rounds)
        for place, name in enumerate(("prefill", "decoding")):
            calibrated_ms = f"{median(each[place] for each in of_the_same_time(rounds)):.4f}"
            if not found:
                yield server, name, calibrated_ms, "not learned", "", "no"
                continue
            learned_ms = median(each.learned[place] for each in rounds if each.learned is not None)
            of = [each[place] for each in found]
            error = f"{median(of):+.0%} ({min(of):+.0%} to {max(of):+.0%})"
            yield server, name, calibrated_ms, f"{learned_ms:.4f}", error, "yes" if abs(median(of)) <= WITHIN else "no"


def _rows(measured: dict[str, list[Round]]) -> Iterator[tuple[str, ...]]:
    for server, rounds in measured.items():
        for number, (each, found) in enumerate(zip(rounds, of_the_same_time(rounds), strict=True), start=1):
            learned = ("", "") if each.learned is None else tuple(f"{ms:.4f}" for ms in each.learned)
            yield (
                server, str(number), f"{found.prefill_ms:.4f}", learned[0],
                f"{found.decode_ms:.4f}", learned[1],
            )  # fmt: skip


if __name__ == "__main__":
    main()
