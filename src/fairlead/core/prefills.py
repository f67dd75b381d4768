"""When the prefills that were sent to one endpoint should be done, for answers whose first token is not seen.

An engine prefills in order, so each request is due after the one before it; an idle engine starts at once. The engine's
own count of waiting requests corrects the estimate both ways: an error of a few per cent would grow without bound on an
engine that is busy for minutes.
"""

from __future__ import annotations

from collections import deque
from math import exp, inf
from typing import Final

import msgspec

from fairlead.core.ledger import Ticket

BUSY_OVER_S: Final = 30.0  # some dozen prompts of an engine that is worth splitting
TRUST_S: Final = 1.0  # an older report no longer keeps a prefill from being due


def remembered_s(began_s: float, now_s: float) -> float:
    """The time since then, of which a second counts the less the longer ago it was; 0 or less: it has not begun."""
    return BUSY_OVER_S * (1 - exp((began_s - now_s) / BUSY_OVER_S))


class _Sent(msgspec.Struct, frozen=True, gc=False):
    ticket: Ticket
    prefill_s: float
    sent_s: float


class PrefillEstimate:
    """Tickets in the order in which they were sent, until they are due, seen to be prefilled, or ended."""

    __slots__ = ("_busy_s", "_held", "_held_until_s", "_known_s", "_last_s", "_sent", "began_s", "due_s", "prompts")

    def __init__(self) -> None:
        self._sent: deque[_Sent] = deque()
        self.due_s = inf  # of the first of them; inf: there is none
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
            self.due_s = now_s + prefill_ms / 1e3
        self._sent.append(_Sent(ticket, prefill_ms / 1e3, now_s))
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
        return next((each.ticket.pending_tokens for each in self._sent if each.ticket.awaits_prefill), 0)

    def settle(self, now_s: float) -> None:
        """Tickets that are due by `now_s` count as prefilled; those that ended are forgotten."""
        sent = self._sent
        while sent and (not sent[0].ticket.awaits_prefill or (self.due_s <= now_s and not self._waits(now_s))):
            self._drop_first(now_s)

    def reported(self, waiting: int, known_s: float, now_s: float) -> None:
        """The engine reported that `waiting` of the requests that were sent until `known_s` have not been started.

        One more may be under way. Those before them are prefilled; of those that wait none is, whatever was estimated.
        """
        sent = self._sent
        self.settle(now_s)
        known = sum(each.sent_s <= known_s and each.ticket.awaits_prefill for each in sent)
        for _ in range(known - waiting - 1):
            while not sent[0].ticket.awaits_prefill:
                self._drop_first(now_s)
            self._drop_first(now_s)
        self._known_s, self._held, self._held_until_s = known_s, min(known, waiting), now_s + TRUST_S

    def _waits(self, now_s: float) -> bool:
        """Whether the first of those sent is one that the engine has not started."""
        if not self._held or now_s > self._held_until_s:
            return False
        return self._sent[0].sent_s <= self._known_s and (
            len(self._sent) <= self._held or self._sent[self._held].sent_s > self._known_s
        )

    def _drop_first(self, now_s: float) -> None:
        """It is prefilled, or ended: the next one is under way since now at the latest."""
        self._sent.popleft().ticket.prefilled()
        self.due_s = min(self.due_s, now_s) + self._sent[0].prefill_s if self._sent else inf
