"""Prompts that may kill engines: which to keep from going on to one engine after another, and which to refuse.

A failure counts only at an engine that worked when the request was sent: it had failed nobody since it last served one.
So nothing counts that is sent during an outage. A prompt is suspect once it has failed at two such engines. Its next
requests are trials: each gets one endpoint and no fallbacks. An engine that answers clears it; one that fails, with no
other suspect there, makes it refused for a while. Several prompts may be at an engine while one of them kills it, and
that tells which one did.

What is kept is bounded, and each call takes constant time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Final, Literal

import msgspec

from fairlead.core.endpoint import Endpoint

MOST_PROMPTS: Final = 1024  # the one whose last failure is the oldest goes first
ENGINES_TO_SUSPECT: Final = 2
FIRST_REFUSED_S: Final = 60.0  # doubled by each trial that fails, as engines may take minutes to be back
LONGEST_REFUSED_S: Final = 960.0
KEPT_S: Final = 2 * LONGEST_REFUSED_S  # since its last failure
TRIAL_S: Final = 60.0  # a trial of which nothing was heard for so long is over

Key = tuple[str | None, int]  # the model or route, and what stands for the request: see `RequestFacts.cause`
Treatment = Literal["alone", "refused"]


class Lost(msgspec.Struct, frozen=True, gc=False):
    """A stream over which its engine may have died."""

    key: Key
    turn_key: int | None  # under which its prompt counts as answered
    sent_s: float


class _Prompt(msgspec.Struct, gc=False):
    engines: tuple[str, ...]  # at which it failed
    failed_s: float
    suspect_s: float = inf  # since when
    refused_until_s: float = -inf
    refused_s: float = FIRST_REFUSED_S  # the next time


class _Trial(msgspec.Struct, gc=False):
    key: Key | None  # None: of several prompts
    began_s: float
    has_failed: bool = False


class Suspects:
    """`alone` and `refused` count requests. `now_s` is the caller's clock."""

    __slots__ = ("_prompts", "_trials", "alone", "refused")

    def __init__(self) -> None:
        self._prompts: dict[Key, _Prompt] = {}  # in the order of their last failures
        self._trials: dict[str, _Trial] = {}  # the latest at each address
        self.alone = 0
        self.refused = 0

    def treatment(self, key: Key, now_s: float) -> Treatment | None:
        """What a request with this prompt gets now; None: what any other gets."""
        prompt = self._prompts.get(key)
        if prompt is None or prompt.suspect_s == inf or now_s - prompt.failed_s > KEPT_S:
            return None
        return "refused" if now_s < prompt.refused_until_s else "alone"

    def tried(self, key: Key, address: str, now_s: float) -> None:
        """A suspect goes there, and nowhere else."""
        trial = self._trials.get(address)
        is_over = trial is None or trial.has_failed or now_s - trial.began_s > TRIAL_S
        is_alone = is_over or (trial is not None and trial.key == key)
        self._trials[address] = _Trial(key if is_alone else None, now_s)

    def failed(self, key: Key, engines: Sequence[Endpoint], sent_s: float, now_s: float) -> None:
        """A request sent at `sent_s` was served by none of these `engines`, which are all that had it."""
        prompt = self._prompts.get(key)
        is_trial = prompt is not None and prompt.suspect_s < sent_s
        is_alone = is_trial and self._trial_failed(key, engines[0].address)
        working = [engine.address for engine in engines if engine.worked_at(sent_s)]
        if not working:
            return
        self._forget_oldest(now_s)
        prompt = self._prompts.pop(key, None)
        if prompt is None or now_s - prompt.failed_s > KEPT_S:
            prompt, is_trial = _Prompt((), now_s), False
        self._prompts[key], prompt.failed_s = prompt, now_s
        if is_alone and is_trial:
            prompt.refused_until_s = now_s + prompt.refused_s
            prompt.refused_s = min(2 * prompt.refused_s, LONGEST_REFUSED_S)
        elif prompt.suspect_s == inf:
            prompt.engines = tuple({*prompt.engines, *working})
            if len(prompt.engines) >= ENGINES_TO_SUSPECT:
                prompt.suspect_s, prompt.engines = now_s, ()

    def answered(self, key: Key, address: str) -> None:
        """An engine has computed it, to the end of the answer."""
        self._prompts.pop(key, None)
        trial = self._trials.get(address)
        if trial is not None and trial.key == key:
            del self._trials[address]

    def forget_all_but(self, addresses: Collection[str]) -> None:
        """Other engines have left the pool."""
        self._trials = {address: each for address, each in self._trials.items() if address in addresses}

    @property
    def are_any(self) -> bool:
        return bool(self._prompts)

    def _trial_failed(self, key: Key, address: str) -> bool:
        """Whether it was the only suspect there."""
        trial = self._trials.get(address)
        if trial is None or trial.key not in (key, None):
            return False
        trial.has_failed = True
        return trial.key == key

    def _forget_oldest(self, now_s: float) -> None:
        for _ in range(2):  # faster than they come
            oldest = next(iter(self._prompts), None)
            if oldest is None:
                return
            if len(self._prompts) < MOST_PROMPTS and now_s - self._prompts[oldest].failed_s <= KEPT_S:
                return
            del self._prompts[oldest]
