"""Whole requests: conversations resent turn by turn with their documents, and the tokens an engine would compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from random import Random
from typing import Final, Literal

import msgspec

from fairlead.api.paths import CHAT_COMPLETIONS
from fairlead.api.prompt import Malformed, parse
from fairlead.context.blocks import DEFAULT_FORMATS
from fairlead.context.draft import Settings
from fairlead.context.reuse import LIMIT_S, ContextReuse
from fairlead.core.prefix import BLOCK_BYTES, chain
from fairlead.statistics import quantile
from fairlead.tools.bench.reuse.lists import BYTES_PER_TOKEN, Lists

WAYS: Final = {
    "raw": None,
    "order": Settings(order=True, dedup=False, formats=DEFAULT_FORMATS),
    "dedup": Settings(order=False, dedup=True, formats=DEFAULT_FORMATS),
    "order and dedup": Settings(order=True, dedup=True, formats=DEFAULT_FORMATS),
}
_ANSWER_WORDS: Final = 60
_SYSTEM: Final = "Answer from the documents. Say so if they do not tell. " * 8


Layout = Literal["with each question", "of this turn, first"]


class Prefilled(msgspec.Struct, frozen=True):
    """Of one way to send the conversations. Tokens are estimated; times are of `ContextReuse.rewrite`, by request."""

    lists: str
    layout: Layout  # where the documents stand
    way: str
    prompt_tokens: int
    computed_tokens: int
    p50_ms: float
    p99_ms: float
    cpu_p99_ms: float
    over_limit: int  # requests that took longer than the request path allows


def prefilled(name: str, lists: Lists, layout: Layout, seed: int) -> list[Prefilled]:
    """All ways on the same conversations, from an empty cache without limit, in blocks of 512 bytes."""
    bodies = _bodies(lists, layout, seed)
    found = []
    for way, settings in WAYS.items():
        reuse = ContextReuse(clock_s=time.perf_counter, limit_s=inf)  # on a busy machine, the limit would be noise
        held: set[int] = set()
        prompt_bytes = hit_bytes = 0
        wall_ms, cpu_ms = [0.0], [0.0]
        for session, body in bodies:
            if settings is not None:
                started_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
                body = reuse.rewrite(body, settings, session=session)
                cpu_ms.append((time.thread_time_ns() - cpu_ns) / 1e6)
                wall_ms.append((time.perf_counter_ns() - started_ns) / 1e6)
            prompt = parse(body, CHAT_COMPLETIONS)
            assert not isinstance(prompt, Malformed)
            blocks = chain(prompt.text)
            hits = next((number for number, block in enumerate(blocks) if block not in held), len(blocks))
            held.update(blocks)
            prompt_bytes += len(prompt.text)
            hit_bytes += hits * BLOCK_BYTES
        found.append(
            Prefilled(
                lists=name,
                layout=layout,
                way=way,
                prompt_tokens=prompt_bytes // BYTES_PER_TOKEN,
                computed_tokens=(prompt_bytes - hit_bytes) // BYTES_PER_TOKEN,
                p50_ms=quantile(wall_ms, 0.5),
                p99_ms=quantile(wall_ms, 0.99),
                cpu_p99_ms=quantile(cpu_ms, 0.99),
                over_limit=sum(ms > 1e3 * LIMIT_S for ms in wall_ms),
            )
        )
    return found


def _bodies(lists: Lists, layout: Layout, seed: int) -> list[tuple[bytes, bytes]]:
    """Session and request of each turn. Texts are made up, in the lengths of the real ones."""
    words = _Words(seed)
    document = _remembered(lambda number: words.text(lists.tokens[number] * BYTES_PER_TOKEN))
    histories: dict[int, list[dict[str, str]]] = {}
    bodies = []
    for turn in lists.turns:
        history = histories.setdefault(turn.conversation, [])
        documents = "\n".join(f'<document id="{number}">\n{document(number)}\n</document>' for number in turn.documents)
        context, question = f"<documents>\n{documents}\n</documents>\n\n", f"Question: {words.text(60)}"
        first = layout == "of this turn, first"
        history.append({"role": "user", "content": question if first else context + question})
        system = {"role": "system", "content": _SYSTEM + context if first else _SYSTEM}
        bodies.append((b"%d" % turn.conversation, msgspec.json.encode({"model": "m", "messages": [system, *history]})))
        history.append({"role": "assistant", "content": words.text(_ANSWER_WORDS * 6)})
    return bodies


class _Words:
    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._words = ["".join(self._rng.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(20_000)]

    def text(self, length_bytes: int) -> str:
        return " ".join(self._rng.choices(self._words, k=max(1, length_bytes // 6)))


def _remembered(make: Callable[[int], str]) -> Callable[[int], str]:
    made: dict[int, str] = {}

    def get(number: int) -> str:
        if number not in made:
            made[number] = make(number)
        return made[number]

    return get
