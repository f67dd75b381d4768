"""`make lab-reuse`, `python -m lab.reuse [MODEL]`: context reuse in front of real vLLM servers.

The same requests go through Envoy to two servers of one model, with and without reuse, each time from empty caches.
Compared are the cached tokens that vLLM reports and the time to the first token.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import httpx

from fairlead.statistics import quantile
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.reuse.lists import Lists, Turn, synthetic
from fairlead.tools.bench.reuse.shares import hit_share, online
from fairlead.tools.demo.traffic import client_of
from lab import command, words
from lab.__main__ import NAMES
from lab.engines import LabEngines
from lab.pool import forget_prompts, known, running_front
from lab.streamed import Took, streamed

WAYS: Final = ("off", "order", "dedup", "order,dedup")
AT_A_TIME: Final = 2
_REPLICAS: Final = 2
_DOCUMENT_WORDS: Final = 150  # a token each
_SINGLE: Final = "one question, 10 documents"
_TURNS: Final = "conversations of 3 turns, 3 documents a turn"
_TURNS_EACH: Final = 3
_MAX_TOKENS: Final = 2


class Request(NamedTuple):
    session: str
    messages: list[dict[str, str]]


def main() -> None:
    about = "Tokens computed and time to first token with and without context reuse; some five minutes."
    parser = command.parser("lab.reuse", about, "stork --requests 60")
    parser.add_argument("model", nargs="?", default="stork", choices=NAMES, metavar="MODEL", help=", ".join(NAMES))
    parser.add_argument("--requests", type=command.at_least_one, default=240, metavar="N", help="of each kind and way")
    command.add_measurement(parser, "benchmarks/results/lab-reuse")
    options = parser.parse_args()
    with command.ending():
        out = command.results_folder(options.out)
        machine = this_machine()
        rows = asyncio.run(_run(options.model, options.requests, options.seed))
        asked = f"python -m lab.reuse {options.model} --requests {options.requests} --seed {options.seed}"
        facts = machine_facts(asked, options.seed, machine, os.getloadavg()[0])
        command.show(_markdown(facts, rows, _contexts(options.requests, options.seed)), out / "reuse.md")


async def _run(model: str, requests: int, seed: int) -> list[tuple[str, ...]]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        folder = Path(name)
        async with (
            LabEngines([model] * _REPLICAS, folder) as engines,
            running_front(
                engines, known(folder), "fairlead", folder, reuse={"*": {"on_request": ["order", "dedup"]}}
            ) as front,
            client_of(front.url) as client,
        ):
            for kind in (_SINGLE, _TURNS):
                for way in WAYS:
                    await forget_prompts(engines)
                    took = await _send_all(client, model, way, list(_requests(kind, requests, seed)))
                    rows.append(_row(kind, way, took))
                    print(*rows[-1], sep="  ", flush=True)
    return rows


async def _send_all(client: httpx.AsyncClient, model: str, way: str, requests: Sequence[Request]) -> list[Took]:
    """Send requests in order, AT_A_TIME concurrently."""
    waiting = iter(requests)
    took: list[Took] = []

    async def send_some() -> None:
        took.extend([await _send(client, model, way, request) for request in waiting])  # one iterator for all

    await asyncio.gather(*[send_some() for _ in range(AT_A_TIME)])
    return took


async def _send(client: httpx.AsyncClient, model: str, way: str, request: Request) -> Took:
    body = {"model": model, "messages": request.messages, "max_tokens": _MAX_TOKENS, "temperature": 0}
    headers = {"x-session-id": f"{way} {request.session}", "x-fairlead-context-reuse": way}
    return await streamed(client, "/v1/chat/completions", body, headers)


def _contexts(count: int, seed: int) -> Lists:
    lists = synthetic(count, seed, documents=60, topics=6)
    return Lists([Turn(turn.conversation, turn.documents[:10]) for turn in lists.turns], lists.tokens)


def _requests(kind: str, count: int, seed: int) -> Iterator[Request]:
    """Requests with documents from the synthetic lists of `fairlead bench-reuse`, in words of one token each."""
    rng = Random(f"{kind} {seed}")
    vocabulary = [word for half in words.words("en") for word in half]
    texts: dict[int, str] = {}

    def text(number: int) -> str:
        if number not in texts:
            texts[number] = "".join(Random(f"document {number}").choices(vocabulary, k=_DOCUMENT_WORDS))
        return texts[number]

    def asked(documents: Sequence[int]) -> dict[str, str]:
        blocks = "\n".join(f'<document id="{number}">\n{text(number)}\n</document>' for number in documents)
        question = "".join(rng.choices(vocabulary, k=10))
        return {"role": "user", "content": f"<documents>\n{blocks}\n</documents>\n\nQuestion: {question}"}

    contexts = _contexts(count, seed).contexts
    if kind == _SINGLE:
        for number, context in enumerate(contexts):
            yield Request(str(number), [asked(context)])
        return
    sessions = count // _TURNS_EACH
    histories: list[list[dict[str, str]]] = [[] for _ in range(sessions)]
    for _ in range(_TURNS_EACH):
        for session, history in enumerate(histories):
            history.append(asked(rng.sample(contexts[session][:6], 3)))  # of 6, so that some repeat an earlier turn
            yield Request(str(session), list(history))
            history.append({"role": "assistant", "content": "".join(rng.choices(vocabulary, k=20))})


def _row(kind: str, way: str, took: Sequence[Took]) -> tuple[str, ...]:
    prompt, cached = sum(one.prompt_tokens for one in took), sum(one.cached_tokens for one in took)
    times = [f"{quantile([one.first_token_ms for one in took], share):.0f}" for share in (0.5, 0.95)]
    return (kind, way, str(len(took)), f"{prompt:,}", f"{prompt - cached:,}", f"{cached / prompt:.1%}", *times)


def _markdown(facts: str, rows: Sequence[tuple[str, ...]], lists: Lists) -> str:
    raw, ordered = (hit_share(sent, lists.tokens, None) for sent in (lists.contexts, online(lists)))
    heads = ("Requests", "Reuse", "Sent", "Prompt tokens", "Computed", "Cached", "TTFT p50 ms", "TTFT p95 ms")
    return f"""# Context reuse in front of real vLLM servers

{facts}

{_REPLICAS} servers of one tiny model on this CPU, behind Envoy and the sidecar; {AT_A_TIME} requests at a time, the
same for each way, from empty caches. Tokens are those that vLLM counts in `usage`.

{table(heads, rows)}

One run of each way, one after another: where a conversation is placed, and so a few points of the cached share, is by
the load of the moment, and times are only as steady as the load averages above.

In one cache without limit, {raw:.1%} of the documents of the single questions would be found in the order received,
and {ordered:.1%} in the order of context reuse; here they are spread over {_REPLICAS} servers.

Documents have {_DOCUMENT_WORDS} tokens. The models' tokenizers know only their own words: a reference or an
annotation is one or a few tokens here, and some fifteen or thirty with a tokenizer of real models. Answers mean nothing
with these requests: only the work is measured.
"""


if __name__ == "__main__":
    main()
