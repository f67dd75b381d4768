"""Which prompts that were sent to one endpoint are still to be computed there.

Of a stream that is watched the first token is seen, and until then it has none. Of any other answer it is estimated: an
engine prefills in order, so each is due after the one before it, and an idle engine starts at once. The engine's own
count of waiting requests corrects the estimate both ways: an error of a few per cent would grow without bound on an
engine that is busy for minutes, and one that has no room in its KV cache starts nothing that is due.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from math import exp, inf
from typing import Final

import msgspec

from fairlead.core.ledger import Loaded, Ticket

BUSY_OVER_S: Final = 30.0  # some dozen prompts of an engine that is worth splitting
TRUST_S: Final = 1.0  # an older report no longer keeps a prefill from being due
_LEAST_KEPT: Final = 32
_LOOK_AGAIN_S: Final = 0.25


def remembered_s(began_s: float, now_s: float) -> float:
    """The time since then, of which a second counts the less the longer ago it was; 0 or less: it has not begun."""
    return BUSY_OVER_S * (1 - exp((began_s - now_s) / BUSY_OVER_S))


class _Sent(msgspec.Struct, frozen=True, gc=False):
    ticket: Ticket
    prefill_s: float
    sent_s: float
    to: Loaded | None  # the gateway may have it served elsewhere

    @property
    def waits(self) -> bool:
        return self.ticket.endpoint is self.to and self.ticket.awaits_prefill

    @property
    def is_presumed(self) -> bool:
        return self.ticket.endpoint is self.to and self.ticket.is_presumed


class PrefillEstimate:
    """Tickets in the order in which they were sent, until they are due, seen to be prefilled, or ended."""

    __slots__ = (
        "_busy_s",
        "_first_due_s",
        "_held",
        "_held_until_s",
        "_known_s",
        "_last_s",
        "_most_presumed",
        "_presumed",
        "_sent",
        "began_s",
        "due_s",
        "prompts",
    )

    def __init__(self) -> None:
        self._sent: deque[_Sent] = deque()
        self._presumed: deque[_Sent] = deque()  # of those that are no longer in it, what was not seen to be prefilled
        self._most_presumed = _LEAST_KEPT  # then those that have ended are forgotten
        self._first_due_s = inf  # of the first of them; inf: there is none
        self.due_s = inf  # when to look again: a first one that is watched may be overdue at every decision
        self._known_s = 0.0  # the engine's last report was of requests sent until then
        self._held = 0  # how many of those wait
        self._held_until_s = 0.0
        self._busy_s = 0.0  # of all prefills sent until `_last_s`, each the less the longer ago it was
        self._last_s = 0.0
        self.began_s = inf  # when the first was sent, by whomever
        self.prompts = 0  # since then

    def expect(self, ticket: Ticket, prefill_ms: float, now_s: float) -> None:
        """`ticket` was just taken; alone on the engine its prefill takes `prefill_ms`."""
        if not self._sent:
            self._begin_first(now_s, prefill_ms / 1e3)
        self._sent.append(_Sent(ticket, prefill_ms / 1e3, now_s, ticket.endpoint))
        self.takes(prefill_ms, now_s)

    def takes(self, prefill_ms: float, now_s: float) -> None:
        """Prompts were sent that take so long, by whomever."""
        self.began_s = min(self.began_s, now_s)
        self.prompts += 1
        self._busy_s = self._busy_s * exp((self._last_s - now_s) / BUSY_OVER_S) + prefill_ms / 1e3
        self._last_s = now_s

    def busy_share(self, now_s: float) -> float:
        """Of the engine's time since the first of them, what the prompts sent to it lately take; above 1 where they
        pile up, as one alone does at first. So engines of an empty pool differ from the first prompt on, and those
        that compute for others are left to it: a pool that waits to know them better decodes everywhere, for seconds.
        """
        seen_s = remembered_s(self.began_s, now_s)
        return self.busy_s(now_s) / seen_s if seen_s > 0 else 0.0

    def busy_s(self, now_s: float) -> float:
        """What all prompts that were sent to the engine take, each the less the longer ago it was sent."""
        return self._busy_s * exp((self._last_s - now_s) / BUSY_OVER_S)

    def under_way_tokens(self) -> int:
        """Of the first prompt whose prefill is not done, as far as is known: some of them may be computed by now."""
        return next((each.ticket.pending_tokens for each in self._sent if each.waits), 0)

    def settle(self, now_s: float) -> None:
        """Tickets that are due by `now_s` count as prefilled; those that ended are forgotten.

        One that is watched is never due, and those behind it wait as well.
        """
        sent = self._sent
        while sent:
            first = sent[0]
            if first.waits and first.ticket.is_watched:
                self.due_s = now_s + _LOOK_AGAIN_S
                return
            if first.waits and (now_s < self._first_due_s or self._is_held(now_s)):
                return
            self._drop_first(now_s)

    def seen(self, ticket: Ticket, now_s: float) -> None:
        """Its first token was seen now. What was sent before it and is not watched has been computed as well."""
        place = next((place for place, each in enumerate(self._sent) if each.ticket is ticket), 0)
        self._start(sum(each.waits for each in islice(self._sent, place)), now_s)
        self.settle(now_s)

    def reported(self, waiting: int, known_s: float, now_s: float) -> None:
        """The engine reported that `waiting` of the requests that were sent until `known_s` have not been started.

        One more may be under way. Those before them are prefilled, unless they are watched; of those that wait none is,
        whatever was estimated.
        """
        self.settle(now_s)
        # Some that wait may have come after `known_s`: only what is more than all of them was presumed wrongly.
        self._resume(waiting - sum(each.waits for each in self._sent), known_s, now_s)
        known = sum(each.sent_s <= known_s and each.waits for each in self._sent)
        self._start(known - waiting - 1, now_s)
        self._known_s, self._held, self._held_until_s = known_s, min(known, waiting), now_s + TRUST_S

    def _resume(self, requests: int, known_s: float, now_s: float) -> None:
        """So many have not been started after all: the last of those that were sent until then."""
        presumed, later = self._presumed, []
        while presumed and requests > 0:
            last = presumed.pop()
            if not last.is_presumed:
                continue
            if last.sent_s > known_s:
                later.append(last)
                continue
            last.ticket.waits_after_all()
            self._sent.appendleft(last)
            self._begin_first(now_s, last.prefill_s)
            requests -= 1
        presumed.extend(reversed(later))

    def _start(self, requests: int, now_s: float) -> None:
        """So many of the first that wait have been started, so they are prefilled, as far as nobody watches them."""
        sent, watched = self._sent, []
        while requests > 0:
            first = sent[0]
            requests -= first.waits
            if first.waits and first.ticket.is_watched:
                watched.append(sent.popleft())
            else:
                self._drop_first(now_s)
        sent.extendleft(reversed(watched))

    def _is_held(self, now_s: float) -> bool:
        """Whether the first of those sent is one that the engine has not started."""
        if not self._held or now_s > self._held_until_s:
            return False
        return self._sent[0].sent_s <= self._known_s and (
            len(self._sent) <= self._held or self._sent[self._held].sent_s > self._known_s
        )

    def _drop_first(self, now_s: float) -> None:
        """It is prefilled, or ended: the next one is under way since now at the latest."""
        first, presumed = self._sent.popleft(), self._presumed
        if first.waits:
            first.ticket.prefilled(presumed=True)
            if len(presumed) >= self._most_presumed:
                self._presumed = presumed = deque([each for each in presumed if each.is_presumed])
                self._most_presumed = max(_LEAST_KEPT, 2 * len(presumed))
            presumed.append(first)
        began_s = now_s if first.ticket.is_watched else min(self._first_due_s, now_s)
        self._begin_first(began_s, self._sent[0].prefill_s if self._sent else inf)

    def _begin_first(self, began_s: float, prefill_s: float) -> None:
        self._first_due_s = self.due_s = began_s + prefill_s
