"""`make lab-learned`, `python -m lab.learned [ENGINE:MODEL...]`: what the sidecar learns of engines with default flags.

Each server stands alone behind Envoy and the sidecar, with its default flags, and gets conversations, streamed and
whole, one at a time and several at once. Between them the idle server itself is asked new prompts one by one: a
calibration of the same minutes, as other load on the machine slows both down alike.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, product
from pathlib import Path
from random import Random
from statistics import median
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
from lab.streamed import Took, streamed

BY_DEFAULT: Final = ("vllm:heron", "sglang:heron", "vllm:crane", "sglang:crane")
WITHIN: Final = 0.2  # of a calibrated constant
CHAT: Final = "/v1/chat/completions"
OUTPUT_TOKENS: Final = 33
CALIBRATED_TOKENS: Final = (64, 512, 1024, 1536)  # words of a prompt, a token each
_EACH: Final = 6  # of these, a round
_AT_A_TIME: Final = (1, 4)
_SESSIONS, _TURNS = 4, 3  # for each of these, a round
_FIRST_TOKENS, _NEXT_TOKENS = (64, 1024), (32, 256)

Messages = list[dict[str, str]]


class Constants(NamedTuple):
    """Milliseconds per token."""

    prefill_ms: float
    decode_ms: float


class Round(NamedTuple):
    calibrated: Constants
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
    each_round = len(CALIBRATED_TOKENS) * _EACH + len(_AT_A_TIME) * _SESSIONS * _TURNS
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
    """Half of the calibration before the traffic and half after it."""
    took = await _calibrate(direct, engine.model, rng, report)
    for at_a_time in _AT_A_TIME:
        await _converse(client, engine.model, rng, at_a_time, report)
    took += await _calibrate(direct, engine.model, rng, report)
    seen = (await admin.get("/debug/endpoints")).json()["endpoints"][0]
    prefill, decode = seen["prefill"], seen["decode"]
    is_known = prefill["learned"] and decode["learned"]
    learned = Constants(prefill["ms_per_token"], decode["ms_per_token"]) if is_known else None
    return Round(calibrated(took), learned)


async def _calibrate(client: httpx.AsyncClient, model: str, rng: Random, report: Callable[[], None]) -> list[Took]:
    took = []
    for _, length in product(range(_EACH // 2), CALIBRATED_TOKENS):
        took.append(await streamed(client, CHAT, _body(model, [_user(rng, length)])))
        report()
    return took


def calibrated(took: Sequence[Took]) -> Constants:
    """The medians of: the slope between two first tokens over their prompts, and what each token after it took."""
    slopes = [
        (one.first_token_ms - other.first_token_ms) / (one.prompt_tokens - other.prompt_tokens)
        for one, other in combinations(took, 2)
        if abs(one.prompt_tokens - other.prompt_tokens) >= CALIBRATED_TOKENS[1] // 2
    ]
    steps = [(one.total_ms - one.first_token_ms) / (one.completion_tokens - 1) for one in took]
    return Constants(median(slopes), median(steps))


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
                {"role": "assistant", "content": _text(rng, OUTPUT_TOKENS)},
                _user(rng, rng.randrange(*_NEXT_TOKENS)),
            ]
        yield list(messages)


def _user(rng: Random, length: int) -> dict[str, str]:
    return {"role": "user", "content": _text(rng, length)}


def _text(rng: Random, length: int) -> str:
    keys, values = words.words("en")
    return "".join(rng.choices([*keys, *values], k=length))


def _body(model: str, messages: Messages) -> dict[str, Any]:
    return {"model": model, "messages": messages, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}


def errors(rounds: Sequence[Round]) -> list[Constants]:
    """Relative, of each round at whose end both constants were known."""
    return [
        Constants(*[ours / theirs - 1 for ours, theirs in zip(each.learned, each.calibrated, strict=True)])
        for each in rounds
        if each.learned is not None
    ]


def markdown(facts: str, measured: dict[str, list[Round]]) -> str:
    conversations, prompts = len(_AT_A_TIME) * _SESSIONS, len(CALIBRATED_TOKENS) * _EACH
    return f"""# What is learned of engines with default flags, against a calibration

{facts}

Each server alone on CPU behind Envoy and the sidecar, without any flag but those that the machine needs: no answer \
says which prompt tokens were cached, SGLang has no metrics, and neither publishes KV events. In each round the \
sidecar sees {conversations} conversations of {_TURNS} turns, half of them streamed, \
{" and ".join(map(str, _AT_A_TIME))} at a time, {OUTPUT_TOKENS} tokens to an answer. Before and after them the idle \
server itself is asked {prompts} new prompts of {CALIBRATED_TOKENS[0]} to {CALIBRATED_TOKENS[-1]:,} tokens, one by \
one. Prefill is the median slope between two of their first tokens, decoding the median time of each later token.

{table(("server", "of a token", "calibrated, ms", "learned, ms", "error", f"within {WITHIN:.0%}"), _summary(measured))}

Medians over rounds. The error is of what was in force at a round's end against the calibration of that round; in \
brackets the least and the greatest. The sidecar goes by the answers of the last few rounds.

## By round

{table(("server", "round", "prefill calibrated, ms", "learned", "decoding calibrated, ms", "learned"), _rows(measured))}

In the sidecar's model a prompt token costs the same wherever it stands; here a long prompt's later ones cost more. \
Other load on the machine (see the load averages) is in both, as far as it lasts for a round.
"""


def _summary(measured: dict[str, list[Round]]) -> Iterator[tuple[str, ...]]:
    for server, rounds in measured.items():
        found = errors(rounds)
        for place, name in enumerate(("prefill", "decoding")):
            calibrated_ms = f"{median(each.calibrated[place] for each in rounds):.4f}"
            if not found:
                yield server, name, calibrated_ms, "not learned", "", "no"
                continue
            learned_ms = median(each.learned[place] for each in rounds if each.learned is not None)
            of = [each[place] for each in found]
            error = f"{median(of):+.0%} ({min(of):+.0%} to {max(of):+.0%})"
            yield server, name, calibrated_ms, f"{learned_ms:.4f}", error, "yes" if abs(median(of)) <= WITHIN else "no"


def _rows(measured: dict[str, list[Round]]) -> Iterator[tuple[str, ...]]:
    for server, rounds in measured.items():
        for number, each in enumerate(rounds, start=1):
            learned = ("", "") if each.learned is None else tuple(f"{ms:.4f}" for ms in each.learned)
            yield (
                server, str(number), f"{each.calibrated.prefill_ms:.4f}", learned[0],
                f"{each.calibrated.decode_ms:.4f}", learned[1],
            )  # fmt: skip


if __name__ == "__main__":
    main()
