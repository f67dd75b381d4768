"""Where routers that do not know of each other's prompts send those that begin alike: to one endpoint, without a word.

Sidecars have an index of caches each, of what they sent themselves. Where several endpoints would do, and each sidecar
took its own next one, prompts of one kind would be computed at as many endpoints as there are sidecars. So all take the
one that the prompt itself chooses, by the first of its blocks that is not cached yet (rendezvous hashing): whoever has
sent prompts that go on like this has sent them there. Alone, a sidecar knows better: it takes turns among its equals,
which keeps prompts of different kinds apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fairlead.core.endpoint import Endpoint

_CHANCE: Final = 0.5  # of the share of prompts that is cached: where no engine says what others left there
_FOUND_SHARE: Final = 0.05  # of what we took to be uncached: less is our own, of before a restart or an eviction
_LEAST_FOUND: Final = 0.05  # of a prompt: less may be a template, or tokens that were counted otherwise
_ENOUGH: Final = 8  # answers that say what was cached
_PRESENT_SHARE: Final = 0.1  # of what is in flight; less may be a report that is a moment older than our count
_NEWEST: Final = 0.1  # weight of the newest look, and
_NEWEST_PROMPT: Final = 0.02  # of the newest prompt or answer
_SPREAD: Final = 0x9E3779B97F4A7C15  # odd, so that each 64-bit number has another product
_MASK: Final = (1 << 64) - 1


def turns_by(keys: Iterable[int], block: int) -> list[int]:
    """The turns of endpoints with these `keys`, of which the least comes first, by a 64-bit hash of the prompt's."""
    mixed = [((key ^ block) * _SPREAD) & _MASK for key in keys]
    return [((each ^ (each >> 32)) * _SPREAD) & _MASK for each in mixed]


class OtherRouters:
    """Whether others send prompts like ours to the same endpoints, and how much of one may be cached by them.

    Answers show it, where engines say what they had cached: more than we sent there. Elsewhere others are taken to
    send prompts like ours if requests are in flight that we did not send.
    """

    __slots__ = ("_answers", "_cached_share", "_found", "_ours", "_theirs", "_uncached", "present")

    def __init__(self) -> None:
        self.present = False
        self._ours = 0.0
        self._theirs = 0.0
        self._cached_share = 0.0
        self._answers = 0
        self._found = 0.0
        self._uncached = 0.0

    def look(self, endpoints: Iterable[Endpoint]) -> None:
        """Call it every second or so: it smooths over some ten calls."""
        ours = theirs = 0
        for endpoint in endpoints:
            ours += endpoint.own.inflight_requests
            theirs += endpoint.peers.inflight_requests + endpoint.strangers.inflight_requests
        if ours or theirs:  # an idle pool says nothing
            self._ours += _NEWEST * (ours - self._ours)
            self._theirs += _NEWEST * (theirs - self._theirs)
        if self._answers >= _ENOUGH:
            self.present = self.chance > _FOUND_SHARE
        else:
            self.present = self._theirs > _PRESENT_SHARE * (self._ours + self._theirs)

    def decided(self, cached_tokens: int, tokens: int) -> None:
        """A prompt of `tokens` was sent to where so many of them are cached."""
        if tokens:
            self._cached_share += _NEWEST_PROMPT * (cached_tokens / tokens - self._cached_share)

    def answered(self, prompt_tokens: int, cached_tokens: int, expected_tokens: float) -> None:
        """An engine says that so many tokens of a prompt were cached, where so many were `expected_tokens`."""
        found = cached_tokens - expected_tokens
        self._answers = min(self._answers + 1, _ENOUGH)
        self._found += _NEWEST_PROMPT * ((found if found > _LEAST_FOUND * prompt_tokens else 0.0) - self._found)
        self._uncached += _NEWEST_PROMPT * (max(0.0, prompt_tokens - expected_tokens) - self._uncached)

    @property
    def chance(self) -> float:
        """That another router left the rest of a prompt at the endpoint that it goes to, though we do not know."""
        if self._answers >= _ENOUGH:
            return self._found / self._uncached if self._uncached else 0.0
        return _CHANCE * self._cached_share
