"""Whole requests: conversations resent turn by turn with their documents, and the tokens an engine would compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from fairlead.bench.reuse.lists import BYTES_PER_TOKEN, Lists
from fairlead.context.blocks import DEFAULT_FORMATS
from fairlead.context.draft import Settings
from fairlead.context.reuse import ContextReuse
from fairlead.core.prefix import chain
from fairlead.core.prompt import Malformed, parse

WAYS: Final = {
    "raw": None,
    "order": Settings(order=True, dedup=False, formats=DEFAULT_FORMATS),
    "dedup": Settings(order=False, dedup=True, formats=DEFAULT_FORMATS),
    "order and dedup": Settings(order=True, dedup=True, formats=DEFAULT_FORMATS),
}
_PATH: Final = "/v1/chat/completions"
_ANSWER_WORDS: Final = 60
_SYSTEM: Final = "Answer from the documents. Say so if they do not tell. " * 8


class Prefilled(msgspec.Struct, frozen=True):
    """Of one way to send the conversations. Tokens are estimated; times are of `ContextReuse.rewrite`, by request."""

    lists: str
    way: str
    prompt_tokens: int
    computed_tokens: int
    p50_ms: float
    p99_ms: float
    late: int


def prefilled(name: str, lists: Lists, seed: int) -> list[Prefilled]:
    """All ways on the same conversations, from an empty cache without limit, in blocks of 512 bytes."""
    bodies = list(_bodies(lists, seed))
    found = []
    for way, settings in WAYS.items():
        reuse = ContextReuse(clock_s=time.perf_counter)
        held: set[int] = set()
        prompt_bytes = hit_bytes = 0
        times_ms = []
        for session, body in bodies:
            if settings is not None:
                started_s = time.perf_counter()
                body = reuse.rewrite(body, settings, session=session)
                times_ms.append(1e3 * (time.perf_counter() - started_s))
            prompt = parse(body, _PATH)
            assert not isinstance(prompt, Malformed)
            blocks = chain(prompt.text)
            hits = next((number for number, block in enumerate(blocks) if block not in held), len(blocks))
            held.update(blocks)
            prompt_bytes += len(prompt.text)
            hit_bytes += hits * 512
        times_ms.sort()
        found.append(
            Prefilled(
                name,
                way,
                prompt_bytes // BYTES_PER_TOKEN,
                (prompt_bytes - hit_bytes) // BYTES_PER_TOKEN,
                times_ms[len(times_ms) // 2] if times_ms else 0.0,
                times_ms[int(0.99 * len(times_ms))] if times_ms else 0.0,
                reuse.counts.late,
            )
        )
    return found


def _bodies(lists: Lists, seed: int) -> list[tuple[bytes, bytes]]:
    """Session and request of each turn. Texts are made up, in the lengths of the real ones."""
    words = _Words(seed)
    document = _remembered(lambda number: words.text(lists.tokens[number] * BYTES_PER_TOKEN))
    history: dict[int, list[dict[str, str]]] = {}
    bodies = []
    for turn in lists.turns:
        messages = history.setdefault(turn.conversation, [{"role": "system", "content": _SYSTEM}])
        documents = "\n".join(f'<document id="{number}">\n{document(number)}\n</document>' for number in turn.documents)
        question = words.text(60)
        content = f"<documents>\n{documents}\n</documents>\n\nQuestion: {question}"
        messages.append({"role": "user", "content": content})
        bodies.append((b"%d" % turn.conversation, msgspec.json.encode({"model": "m", "messages": messages})))
        messages.append({"role": "assistant", "content": words.text(_ANSWER_WORDS * 6)})
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
