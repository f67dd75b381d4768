"""The traffic: multi-turn sessions in two regimes, from a seed. Nothing here knows of policies, engines or time.

A session is a system prompt, which it may share with others, and turns that each repeat all before them, as agents and
chats do. Lengths are Zipf-like: most sessions are short, and a few make most of the requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random
from typing import Final, TypeVar

_UNNAMED_SHARE: Final = 0.15  # sessions whose client sends no session header
_WORD: Final = re.compile(r"[a-z]{2,8}")  # one token each, for the simulated engines

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Regime:
    """What kind of traffic. Pairs are the least and the most; between them small values are likelier."""

    name: str
    about: str
    system_prompts: int  # different ones; the first of n is n times as common as the last
    system_words: int
    most_turns: int
    turn_words: tuple[int, int]
    answer_tokens: tuple[int, int]
    think_ms: float  # mean of an exponential distribution


@dataclass(frozen=True, slots=True)
class Turn:
    """What the client sends next, after it has thought about the last answer for `think_ms`."""

    text: str
    answer_tokens: int
    think_ms: float


@dataclass(frozen=True, slots=True)
class Session:
    """`name` is that of the session header, or None where the client sends none."""

    name: str | None
    system: str
    turns: tuple[Turn, ...]


AGENTS: Final = Regime(
    name="agents",
    about="long system prompts that sessions share, tool results that make the prompt grow, short answers",
    system_prompts=6,
    system_words=1500,
    most_turns=10,
    turn_words=(60, 800),
    answer_tokens=(12, 48),
    think_ms=150.0,
)
CHATS: Final = Regime(
    name="chats",
    about="one short system prompt, one to three turns, hardly anything to reuse",
    system_prompts=1,
    system_words=20,
    most_turns=3,
    turn_words=(150, 1500),
    answer_tokens=(24, 64),
    think_ms=150.0,
)


def make_sessions(regime: Regime, count: int, seed: str) -> list[Session]:
    """`count` sessions; the same for the same arguments."""
    rng = Random(f"{regime.name} {seed}")
    systems = [_words(rng, regime.system_words) for _ in range(regime.system_prompts)]
    return [_session(regime, f"{seed}-{number}", _zipf(rng, systems), rng) for number in range(count)]


def _session(regime: Regime, name: str, system: str, rng: Random) -> Session:
    turns = _zipf(rng, range(1, regime.most_turns + 1))
    return Session(
        name=None if rng.random() < _UNNAMED_SHARE else name,
        system=system,
        turns=tuple(_turn(regime, rng) for _ in range(turns)),
    )


def _turn(regime: Regime, rng: Random) -> Turn:
    return Turn(
        text=_words(rng, _between(rng, regime.turn_words)),
        answer_tokens=_between(rng, regime.answer_tokens),
        think_ms=rng.expovariate(1 / regime.think_ms),
    )


def _zipf(rng: Random, ranked: Sequence[_T]) -> _T:
    """The n-th of `ranked` with a weight of 1/n."""
    return rng.choices(ranked, [1 / rank for rank in range(1, len(ranked) + 1)])[0]


def _between(rng: Random, bounds: tuple[int, int]) -> int:
    """Evenly on a logarithmic scale."""
    low, high = bounds
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _words(rng: Random, count: int) -> str:
    return " ".join(rng.choices(_vocabulary(), k=count))


@cache
def _vocabulary() -> list[str]:
    text = (resources.files("fairlead.tools.demo") / "texts" / "en.txt").read_text(encoding="utf-8")
    return sorted(set(_WORD.findall(text)))
