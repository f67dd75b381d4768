"""Pools and traffic drawn at random: a case is a number, and the same number draws the same case.

Every size is drawn over the range that we believe users have, mostly evenly in its logarithm; the ranges were written
down before any policy was run on them. A traffic is a mixture of one to three applications. Their users come back for
more turns or do not, under a system prompt of their own or a shared one, with documents retrieved for each turn or
without, for short or long answers, evenly or in bursts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, log
from random import Random
from typing import Final, NamedTuple

import msgspec

from fairlead.tools.replay.workload import Conversation, Turn, Workload, as_runs
from fairlead.tools.replay.world import World, alike
from fairlead.tools.replay.worlds import CHANGES
from fairlead.tools.simulate.parameters import EngineParameters

BLOCK: Final = 64
LONGEST: Final = 60_000  # tokens of a prompt; a conversation ends before it would be longer
REQUESTS: Final = 1_200
LOADS: Final = (0.5, 0.95)
NOT_DRAWN: Final = (
    "plain",
    "foreign",
    "worst",
)  # foreign traffic, in the worst too, is of a size for one kind of engine


class App(NamedTuple):
    """One application. Tokens are means of what is drawn for each tenant, document, question or answer."""

    tenants: int
    skew: float  # the exponent of the law by which tenants and documents are popular
    system_tokens: float
    documents: int  # 0: retrieves none
    document_tokens: float
    retrieved: int
    turns: float
    question_tokens: float
    answer_tokens: float
    answer_spread: float
    think_s: float

    def __str__(self) -> str:
        found = f", {self.retrieved} of {self.documents} documents of {self.document_tokens:.0f}"
        return (
            f"{self.tenants} tenants' system prompts of {self.system_tokens:.0f}{found if self.documents else ''}, "
            f"{self.turns:.0f} turns of {self.question_tokens:.0f} and answers of {self.answer_tokens:.0f} tokens"
        )


class Drawn(NamedTuple):
    number: int
    world_name: str
    world: World
    apps: tuple[App, ...]
    traffic: Workload
    load: float


def drawn(number: int) -> Drawn:
    rng = Random(f"a pool and its traffic {number}")
    name = "plain" if rng.random() < 0.5 else rng.choice([each for each in CHANGES if each not in NOT_DRAWN])
    world = CHANGES[name](_pool(rng))
    apps = tuple(_app(rng) for _ in range(rng.randint(1, 3)))
    shares = [_even(rng, 0.2, 1.0) for _ in apps]
    starts = _bursts(rng) if rng.random() < 0.4 else _steady(rng)
    traffic = _traffic(rng, apps, shares, starts)
    return Drawn(number, name, world, apps, traffic, rng.uniform(*LOADS))


def _pool(rng: Random) -> World:
    step_ms = _even(rng, 5.0, 40.0)
    batch = rng.choice((32, 64, 128, 256))
    engine = EngineParameters(
        prefill_ms_per_token=_even(rng, 0.02, 0.8),
        decode_ms_per_step=step_ms,
        decode_ms_per_sequence=step_ms * _even(rng, 0.005, 0.03),
        token_budget=rng.choice((2_048, 8_192, 16_384)),
        max_num_seqs=batch,
    )
    return alike(rng.randint(3, 16), engine, round(_even(rng, 150_000, 1_500_000)))


def _app(rng: Random) -> App:
    retrieves = rng.random() < 0.35
    document_tokens = _even(rng, 200, 20_000)
    return App(
        tenants=round(_even(rng, 1, 200)),
        skew=rng.uniform(0.3, 1.3),
        system_tokens=_even(rng, 64, 8_000),
        documents=round(_even(rng, 20, 2_000)) if retrieves else 0,
        document_tokens=document_tokens,
        retrieved=max(1, min(rng.randint(1, 5), int(LONGEST / 2 / document_tokens))),
        turns=1.0 if rng.random() < 0.4 else _even(rng, 2, 30),
        question_tokens=_even(rng, 20, 4_000),
        answer_tokens=_even(rng, 10, 1_500),
        answer_spread=rng.uniform(0.2, 1.0),
        think_s=_even(rng, 1, 60),
    )


def _traffic(rng: Random, apps: tuple[App, ...], shares: list[float], starts: Iterator[float]) -> Workload:
    """Applications have shares of the conversations; the last conversation ends where REQUESTS are reached."""
    makers = [_conversations(rng, app, number) for number, app in enumerate(apps)]
    found: list[Conversation] = []
    left = REQUESTS
    while left > 0:
        (make,) = rng.choices(makers, shares)
        one = make(next(starts) * 1e3)
        turns = one.turns[:left]
        left -= len(turns)
        found.append(msgspec.structs.replace(one, turns=turns))
    return Workload("drawn", tuple(found), BLOCK)


def _conversations(rng: Random, app: App, place: int) -> Callable[[float], Conversation]:
    ids = _Ids((place + 1) << 40)
    systems = [ids.take(_about(rng, app.system_tokens, 0.7)) for _ in range(app.tenants)]
    documents = [_about(rng, app.document_tokens, 0.5) for _ in range(app.documents)]
    placed: dict[tuple[int, int], range] = {}  # a document's blocks, by what stands before it
    popular = [rank**-app.skew for rank in range(1, max(app.tenants, app.documents) + 1)]

    def make(start_ms: float) -> Conversation:
        (system,) = rng.choices(systems, popular[: len(systems)])
        said = list(system)
        turns: list[Turn] = []
        for _ in range(1 if app.turns == 1.0 else 1 + int(rng.expovariate(1 / (app.turns - 1)))):
            for document in _distinct(rng, len(documents), popular, app.retrieved):
                before = said[-1], document
                if before not in placed:
                    placed[before] = ids.take(documents[document])
                said += placed[before]
            said += ids.take(_about(rng, app.question_tokens, 0.8))
            if len(said) * BLOCK > LONGEST and turns:
                break
            del said[LONGEST // BLOCK :]
            answer = max(2, min(4_096, round(_about(rng, app.answer_tokens, app.answer_spread))))
            think_ms = 1e3 * _about(rng, app.think_s, 0.8)
            prompt_tokens = len(said) * BLOCK + rng.randrange(1, BLOCK)
            turns.append(Turn(prompt_tokens, answer, as_runs(said), think_ms if turns else 0.0))
            said += ids.take(answer)
        return Conversation(start_ms, tuple(turns), session=f"{place} {ids.next_id}".encode())

    return make


class _Ids:
    """Block ids that nobody else has. One stands for its tokens and for all before them."""

    def __init__(self, first: int) -> None:
        self.next_id = first

    def take(self, tokens: float) -> range:
        """Those of at least one block."""
        first = self.next_id
        self.next_id += max(1, round(tokens / BLOCK))
        return range(first, self.next_id)


def _distinct(rng: Random, documents: int, popular: list[float], count: int) -> list[int]:
    """Up to `count` of them, the popular ones more often."""
    return list(dict.fromkeys(rng.choices(range(documents), popular[:documents], k=count))) if documents else []


def _steady(rng: Random) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += rng.expovariate(1.0)
        yield at_s


def _bursts(rng: Random) -> Iterator[float]:
    """Twice to six times as many as on average for some seconds, and fewer for a while after it."""
    high, share = rng.uniform(2.0, 6.0), rng.uniform(0.05, 0.15)
    low = (1 - high * share) / (1 - share)
    at_s = 0.0
    while True:
        for rate, lasts in ((high, 60 * share), (low, 60 * (1 - share))):
            until_s = at_s + rng.expovariate(1 / lasts)
            while (at_s := at_s + rng.expovariate(rate)) < until_s:
                yield at_s
            at_s = until_s


def _even(rng: Random, low: float, high: float) -> float:
    """Between both, evenly in the logarithm."""
    return exp(rng.uniform(log(low), log(high)))


def _about(rng: Random, mean: float, spread: float) -> float:
    """Lognormal; `spread` is the standard deviation of the logarithm."""
    return mean * exp(rng.gauss(-spread * spread / 2, spread))
