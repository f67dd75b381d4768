"""Engines with a tokenizer, a chat template and a prefix cache of whole blocks, and traffic for them.

Requests go the real way from a body to a decision; the engine then says what was truly cached. `python -m
tests.core.cached_tokens_world` prints how well that was estimated.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from uuid import UUID

from fairlead.api.prompt import Prompt, parse
from fairlead.api.usage import Usage
from fairlead.core.facts import make_facts
from fairlead.core.in_flight import InFlight
from fairlead.core.learning import Learner
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.policies import build_policy
from tests.core.world import make_endpoint

Tokenize = Callable[[str], Sequence[int | str]]
Body = dict[str, Any]

BLOCK_TOKENS: Final = 16
MODEL: Final = "m"
_WARM_UP: Final = 0.3  # of the traffic, while rates are learned
_PIECE: Final = re.compile(r" ?[A-Za-z]{1,6}|\d{1,3}|[^\sA-Za-z\d]{1,2}|\s+")


def tokenize(text: str) -> list[str]:
    """As today's tokenizers split: short runs of letters, three digits at once, two signs, a run of space."""
    return _PIECE.findall(text)


class CachingEngine:
    """The prefix cache of one engine: least recently used blocks go first, a prompt's tail before its head."""

    def __init__(self, capacity_tokens: int, split: Tokenize, *, image_tokens: int, keeps_replies: bool = True) -> None:
        self.split = split
        self.image_tokens = image_tokens
        self.keeps_replies = keeps_replies
        self._capacity = capacity_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def answer(self, body: Body, reply: str) -> Usage:
        """Compute the prompt and generate `reply`."""
        prompt = self.render(body)
        answered = self.split(reply)
        generated = [*prompt, *answered] if self.keeps_replies else [*prompt, "thought", *answered]
        blocks = _blocks(prompt)
        cached = next((i for i, block in enumerate(blocks) if block not in self._blocks), len(blocks))
        cached = min(cached, (len(prompt) - 1) // BLOCK_TOKENS)
        self.fill(_blocks(generated))
        return Usage(len(prompt), cached * BLOCK_TOKENS, len(answered))

    def fill(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def render(self, body: Body) -> list[int | str]:
        """ChatML, with the tools in the head as Hermes has them."""
        tokens: list[int | str] = [f"salt {body.get('cache_salt')}"]
        if "tools" in body:
            tokens += self.split("# Tools\nYou may call one or more functions to assist. " * 8 + _spaced(body["tools"]))
        for message in body["messages"]:
            tokens += ["<|im_start|>", message["role"], "\n"]
            content = message["content"]
            parts: list[Body] = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for part in parts:
                if part["type"] == "text":
                    tokens += self.split(part["text"])
                else:
                    url = part["image_url"]["url"]
                    tokens += [f"{url} {n}" for n in range(self.image_tokens)]
            if "tool_calls" in message:
                tokens += self.split(_spaced(message["tool_calls"]))
            tokens += ["<|im_end|>", "\n"]
        return [*tokens, "<|im_start|>", "assistant", "\n"]


def _spaced(value: Any) -> str:
    return json.dumps(value, indent=1)


def _blocks(tokens: Sequence[int | str]) -> list[int]:
    found, before = [], 0
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        before = hash((before, tuple(tokens[start : start + BLOCK_TOKENS])))
        found.append(before)
    return found


@dataclass
class Estimates:
    """Of the prompts after the first ones: what was expected to be cached, and what was."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    lengths: list[tuple[int, int]] = field(default_factory=list)

    @property
    def cached_ratio(self) -> float:
        return sum(expected for expected, _ in self.pairs) / max(1, sum(true for _, true in self.pairs))

    @property
    def length_ratio(self) -> float:
        return sum(expected for expected, _ in self.lengths) / sum(true for _, true in self.lengths)

    @property
    def too_high(self) -> list[int]:
        return [expected - true for expected, true in self.pairs if expected > true]


class CachedTokensWorld:
    """A router before such engines, in which one request follows the other."""

    def __init__(self, *engines: CachingEngine, capacity_tokens: int = 10**9) -> None:
        self.engines = {f"{number}:1": engine for number, engine in enumerate(engines)}
        pool = Pool([make_endpoint(address, MODEL) for address in self.engines], {})
        self.router = Router(pool, build_policy("fairlead", {}), fallbacks=0, rng=Random(0))
        for address in self.engines:
            self.router.index.set_capacity_tokens(address, capacity_tokens)
        self.learner = Learner()
        self.now_s = 0.0

    def ask(self, body: Body, reply: str, *, observed: bool = True) -> tuple[int, int, int, int]:
        """Cached tokens, expected and true, and tokens of the prompt, expected and true."""
        prompt = parse(json.dumps({"model": MODEL} | body, ensure_ascii=False).encode(), "/v1/chat/completions")
        assert isinstance(prompt, Prompt)
        facts = make_facts(prompt, MODEL, rates=self.learner.rates(MODEL, self.router.pool))
        in_flight = self.router.admit(facts, None, self.now_s)
        assert isinstance(in_flight, InFlight)
        in_flight.sent(facts, self.now_s)
        self.now_s += 1.0
        usage = self.engines[in_flight.address].answer(body, reply)
        in_flight.served(in_flight.address, 200, self.now_s, in_one_piece=True)
        seen = in_flight.observation(usage, self.now_s, streamed=False) if observed else None
        if seen is not None:
            self.learner.observe(seen, self.router.pool)
        in_flight.ended(self.now_s, seen)
        self.learner.settle(self.router.pool)
        self.now_s += 2.0
        self.router.trim(self.now_s)
        assert usage.cached_tokens is not None
        assert usage.prompt_tokens is not None
        return in_flight.decision.cached_tokens, usage.cached_tokens, facts.tokens, usage.prompt_tokens

    def run(
        self, traffic: Iterator[tuple[Body, str]], *, foreign: Callable[[CachingEngine], None] | None = None
    ) -> Estimates:
        asked = list(traffic)
        estimates = Estimates()
        for number, (body, reply) in enumerate(asked):
            if foreign is not None:
                for engine in self.engines.values():
                    foreign(engine)
            cached, true_cached, tokens, true_tokens = self.ask(body, reply)
            if number > _WARM_UP * len(asked):
                estimates.pairs.append((cached, true_cached))
                estimates.lengths.append((tokens, true_tokens))
        return estimates


# ---- traffic --------------------------------------------------------------------------------------------------------

_TEXT: Final = (
    "the harbour of this old town was built by merchants who came from many countries and their ships carried wool "
    "timber salt fish wine cloth letters news hope weather permitting every captain remembered winter storms while "
    "children counted masts before breakfast although nobody believed them"
)
_WORDS: Final = tuple(_TEXT.split())


def prose(rng: Random, words: int) -> str:
    text = " ".join(rng.choice(_WORDS) for _ in range(words))
    return re.sub(
        r"(\w+ ){9}", lambda found: found.group().strip() + ".\n" if rng.random() < 0.2 else found.group(), text
    )


def identifiers(rng: Random, pairs: int) -> str:
    def one() -> str:
        return str(UUID(int=rng.getrandbits(128), version=4))

    return json.dumps({one(): one() for _ in range(pairs)})


def conversations(
    rng: Random, count: int, turns: int, first: Callable[[Random], Any], question: Callable[[Random], Any], **more: Any
) -> Iterator[tuple[Body, str]]:
    """`count` conversations at a time, whose turns come mixed; each repeats all before it."""
    shared = {"role": "system", "content": "You answer briefly. " + prose(Random(1), 200)}
    talks: list[list[Body]] = [[shared, {"role": "user", "content": first(rng)}] for _ in range(count)]
    order = [talk for talk in talks for _ in range(turns)]
    rng.shuffle(order)
    for talk in order:
        reply = prose(rng, rng.randrange(50, 400))
        yield {"messages": list(talk)} | more, reply
        talk += [{"role": "assistant", "content": reply}, {"role": "user", "content": question(rng)}]


def in_prose(rng: Random) -> Iterator[tuple[Body, str]]:
    return conversations(rng, 12, 6, lambda r: prose(r, r.randrange(100, 1500)), lambda r: prose(r, 40))


def in_identifiers(rng: Random) -> Iterator[tuple[Body, str]]:
    return conversations(rng, 12, 6, lambda r: identifiers(r, r.randrange(20, 120)), lambda r: identifiers(r, 3))


def _tool(number: int) -> Body:
    described = prose(Random(number), 60)
    fields = {f"field_{n}": {"type": "string", "description": prose(Random(n), 8)} for n in range(6)}
    return {"type": "function", "function": {"name": f"tool_{number}", "description": described,
            "parameters": {"type": "object", "properties": fields}}}  # fmt: skip


def of_agents(rng: Random) -> Iterator[tuple[Body, str]]:
    """Tool calls and their results, some of them code and some JSON."""
    tools = [_tool(number) for number in range(8)]
    system = {"role": "system", "content": prose(Random(2), 500)}
    talks: list[list[Body]] = [[system, {"role": "user", "content": prose(rng, 60)}] for _ in range(8)]
    order = [talk for talk in talks for _ in range(10)]
    rng.shuffle(order)
    for talk in order:
        call = {"id": f"call_{rng.randrange(10**9)}", "type": "function",
                "function": {"name": "tool_1", "arguments": json.dumps({"path": prose(rng, 3)})}}  # fmt: skip
        yield {"messages": list(talk), "tools": tools}, _spaced([call])
        result = identifiers(rng, 8) if rng.random() < 0.5 else _code(rng)
        talk += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": result}]


def _code(rng: Random) -> str:
    lines = [f"    value_{rng.randrange(100)} = self.{rng.choice(_WORDS)}({rng.choice(_WORDS)}, {rng.randrange(9)})"]
    return "\n".join(["def run(self):", *lines * 30])


def image(rng: Random, width: int = 640, height: int = 480) -> Body:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)
    data = base64.b64encode(head + rng.randbytes(3000)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def with_images(rng: Random) -> Iterator[tuple[Body, str]]:
    def first(rng: Random) -> list[Body]:
        return [image(rng), {"type": "text", "text": prose(rng, 80)}]

    return conversations(rng, 12, 5, first, lambda r: first(r) if r.random() < 0.3 else prose(r, 40))


def of_others(rng: Random, tokens: int) -> Callable[[CachingEngine], None]:
    """What an engine computes for somebody else between two of our requests."""

    def fill(engine: CachingEngine) -> None:
        engine.fill([rng.getrandbits(60) for _ in range(rng.randrange(2 * tokens // BLOCK_TOKENS))])

    return fill


TRAFFIC: Final[dict[str, Callable[[Random], Iterator[tuple[Body, str]]]]] = {
    "prose": in_prose, "UUID JSON": in_identifiers, "agents with tools": of_agents, "images": with_images,
}  # fmt: skip


def engine(split: Tokenize = tokenize, *, capacity_tokens: int = 10**9, image_tokens: int = 256) -> CachingEngine:
    return CachingEngine(capacity_tokens, split, image_tokens=image_tokens)


def main() -> None:
    print(f"{'traffic':20} {'others':>7} {'cached':>7} {'length':>7} {'over by a block':>16}")
    for name, traffic in TRAFFIC.items():
        for others_tokens, capacity_tokens in ((0, 10**9), (400, 60_000)):
            engines = [engine(capacity_tokens=capacity_tokens) for _ in range(2)]
            world = CachedTokensWorld(*engines, capacity_tokens=capacity_tokens)
            requests = (request for seed in range(4) for request in traffic(Random(seed)))
            found = world.run(requests, foreign=of_others(Random(8), others_tokens) if others_tokens else None)
            over = sum(tokens > BLOCK_TOKENS for tokens in found.too_high)
            print(f"{name:20} {others_tokens:7} {found.cached_ratio:7.3f} {found.length_ratio:7.3f} "
                  f"{over:8} of {len(found.pairs):4}")  # fmt: skip


if __name__ == "__main__":
    main()
