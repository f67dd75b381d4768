"""`make lab-overload`, `python -m lab.overload [MODEL]`: a batch tenant floods a real vLLM server; does chat notice?

The same chat requests, one each half second, go through Envoy to one server that runs eight requests at once: alone,
and alongside a batch tenant that has 48 requests open all the time. Both with and without `admission`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import httpx

from fairlead.statistics import quantile
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.demo.traffic import client_of
from lab import command, words
from lab.__main__ import NAMES
from lab.engines import LabEngines
from lab.pool import known, running_front
from lab.servers import Extra
from lab.streamed import Took, streamed

FLOOD: Final = 48  # requests of the batch tenant, open all the time
BATCH_LIMIT: Final = 8  # requests that the engine runs at once
_CHAT_EVERY_S: Final = 0.5
_CHAT_TOKENS, _CHAT_ANSWER = 512, 8
_BATCH_TOKENS, _BATCH_ANSWER = 256, 64
_FLOODED_S: Final = 10.0  # before chat begins: the engine is full, and its limit is known
_TENANTS: Final = {"header": "x-tenant", "vouched_by": "the lab"}
_ADMISSION: Final = {
    "header": "x-priority",
    "vouched_by": "the lab",
    "priorities": {"chat": {"level": 10}, "batch": {"level": -10, "share": 0.5, "max_wait_s": 120}},
}


class Phase(NamedTuple):
    name: str
    chat: list[Took]
    chat_refused: int
    batch: int  # answers
    batch_refused: int
    span_s: float


def main() -> None:
    about = "Chat alone and alongside a flood of batch requests, with and without admission; some five minutes."
    parser = command.parser("lab.overload", about, "stork --requests 60")
    parser.add_argument("model", nargs="?", default="stork", choices=NAMES, metavar="MODEL", help=", ".join(NAMES))
    parser.add_argument("--requests", type=command.at_least_one, default=100, metavar="N", help="of chat in each phase")
    command.add_measurement(parser, "benchmarks/results/lab-overload")
    options = parser.parse_args()
    with command.ending():
        out = command.results_folder(options.out)
        machine = this_machine()
        phases = asyncio.run(_run(options.model, options.requests, options.seed))
        asked = f"python -m lab.overload {options.model} --requests {options.requests} --seed {options.seed}"
        facts = machine_facts(asked, options.seed, machine, os.getloadavg()[0])
        command.show(_markdown(facts, phases), out / "overload.md")


async def _run(model: str, requests: int, seed: int) -> list[Phase]:
    phases: list[Phase] = []
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        folder = Path(name)
        limit = Extra(("--max-num-seqs", str(BATCH_LIMIT)), {})
        async with LabEngines([model], folder, lambda _: limit, quiet=True) as engines:
            for way, sections in (("off", {}), ("on", {"admission": _ADMISSION})):
                place = folder / way
                place.mkdir()
                async with (
                    running_front(engines, known(place), "fairlead", place, tenants=_TENANTS, **sections) as front,
                    client_of(front.url) as client,
                ):
                    for flooded in (False, True):
                        name = f"{'alongside the flood' if flooded else 'alone'}, admission {way}"
                        rng = Random(f"{seed} {name}")
                        phases.append(await _phase(client, model, name, requests, rng, flooded=flooded))
                        print(*_row(phases[-1], phases), sep="  ", flush=True)
    return phases


async def _phase(
    client: httpx.AsyncClient, model: str, name: str, requests: int, rng: Random, *, flooded: bool
) -> Phase:
    batch: list[int] = []  # status of each
    loop = asyncio.get_running_loop()
    async with _flood(client, model, rng, batch, FLOOD if flooded else 0):
        if flooded:
            await asyncio.sleep(_FLOODED_S)
        began_s, before = loop.time(), len(batch)
        asked = []
        for number in range(requests):
            await asyncio.sleep(max(0.0, began_s + number * _CHAT_EVERY_S - loop.time()))
            body = _body(model, rng, _CHAT_TOKENS, _CHAT_ANSWER)
            asked.append(asyncio.create_task(_chat(client, body)))
        chat = [took for took in await asyncio.gather(*asked) if took is not None]
        span_s = loop.time() - began_s
    during = batch[before:]
    return Phase(
        name,
        chat,
        requests - len(chat),
        during.count(httpx.codes.OK),
        during.count(httpx.codes.TOO_MANY_REQUESTS),
        span_s,
    )


@asynccontextmanager
async def _flood(
    client: httpx.AsyncClient, model: str, rng: Random, ended: list[int], open_requests: int
) -> AsyncIterator[None]:
    async def one_after_another() -> None:
        while True:
            body = _body(model, rng, _BATCH_TOKENS, _BATCH_ANSWER)
            answer = await client.post("/v1/chat/completions", json=body, headers=_who("batch"))
            ended.append(answer.status_code)
            if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                await asyncio.sleep(int(answer.headers["retry-after"]))
            else:
                answer.raise_for_status()

    tasks = [asyncio.create_task(one_after_another()) for _ in range(open_requests)]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()  # what ended it
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _body(model: str, rng: Random, tokens: int, answer_tokens: int) -> dict[str, object]:
    message = {"role": "user", "content": words.question(rng, "en", tokens).prompt}
    return {"model": model, "messages": [message], "max_tokens": answer_tokens, "ignore_eos": True, "temperature": 0}


async def _chat(client: httpx.AsyncClient, body: dict[str, object]) -> Took | None:
    """None: it was refused."""
    try:
        return await streamed(client, "/v1/chat/completions", body, _who("chat"))
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.TOO_MANY_REQUESTS:
            raise
        return None


def _who(name: str) -> dict[str, str]:
    return {"x-tenant": name, "x-priority": name}


def _row(phase: Phase, phases: list[Phase]) -> tuple[str, ...]:
    ttft_ms = [took.first_token_ms for took in phase.chat]
    alone = next(each for each in phases if each.name.endswith(phase.name.rpartition(" ")[2]))  # of the same way
    alone_p95_ms = quantile([took.first_token_ms for took in alone.chat], 0.95)
    return (
        phase.name,
        str(len(phase.chat)),
        str(phase.chat_refused),
        f"{quantile(ttft_ms, 0.5):,.0f}",
        f"{quantile(ttft_ms, 0.95):,.0f}",
        f"{quantile(ttft_ms, 0.95) / alone_p95_ms:.2f}",
        f"{phase.batch / phase.span_s:.1f}",
        str(phase.batch_refused),
    )


def _markdown(facts: str, phases: list[Phase]) -> str:
    head = (
        "",
        "chat answers",
        "chat refused",
        "TTFT p50 ms",
        "p95 ms",
        "p95 over alone",
        "batch answers/s",
        "batch refused",
    )
    return f"""# A batch tenant floods, and chat alongside it

{facts}

One vLLM server that runs {BATCH_LIMIT} requests at once. Chat: a prompt of some {_CHAT_TOKENS} tokens each
{_CHAT_EVERY_S:g} s, {_CHAT_ANSWER} tokens of answer, streamed. Batch: {FLOOD} requests open all the time, prompts
of some {_BATCH_TOKENS} tokens, {_BATCH_ANSWER} tokens of answer. All prompts differ. With admission chat is of
level 10, and batch of level -10 with half of the engine (`share: 0.5`); nothing else is configured. Wanted: chat's
p95 within 1.5 times its value alone.

{table(head, [_row(phase, phases) for phase in phases])}

Each flood is compared with chat alone before it, through the same sidecar. Server, Envoy, sidecar and clients share the
cores: where the two phases alone differ, other work on the machine does, and only the order of magnitude counts.
"""


if __name__ == "__main__":
    main()
