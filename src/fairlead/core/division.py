"""Whether it pays that a model's engines divide the work of requests: some compute prompts, and the others decode.

Engines of role `both` may do it or not, and each way keeps itself. Where all do both halves, prompts interrupt every
answer wherever it goes, so that a transfer seems to gain nothing. Where they divide the work, those that decode have so
many answers under way that a prompt there seems to cost more than any transfer. So both ways are compared as a whole:

    mixed   = alone * (1 + slowdown * n) / (1 - busy)
    divided = alone * (1 + slowdown * n / (1 - busy)) + transfer

`busy` is the share of their time that prompts take, `n` the answers that are under way at each on average, and `alone`
the time of an answer that nothing slows. Answers slow each other for as long either way: fewer engines have more of
them each, or each is prolonged by prompts. So dividing pays where transfer < alone * busy / (1 - busy). There nobody
gains by being the first to compute a prompt at an engine where no others are computed. Elsewhere the many answers
at an engine that only decodes keep no prompts away from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from math import inf
from operator import itemgetter
from statistics import fmean
from typing import Final

from fairlead.core.endpoint import Endpoint

MOST_BUSY: Final = 0.9  # what is busier would seem to decode never
QUICKEST: Final = 4  # as many as of the policy's ranking are compared
_KEPT_S: Final = 0.05  # means over a large pool, which change slowly


class Division:
    """Means over the endpoints of one model that answer; `look` comes first in each decision."""

    __slots__ = ("_answering", "_until_s", "busy_share", "present_requests", "quickest")

    def __init__(self, answering: Sequence[Endpoint]) -> None:
        """At least one."""
        self.busy_share = 0.0  # of the engines' time, what prompts that were sent to them lately take
        self.present_requests = 0.0
        self.quickest: Sequence[Endpoint] = ()  # a few, which decode one answer more in the least time
        self._answering = answering
        self._until_s = -inf

    def look(self, now_s: float) -> None:
        if now_s < self._until_s:
            return
        self._until_s = now_s + _KEPT_S
        those = [e for e in self._answering if e.health.healthy] or self._answering
        busy = [min(1.0, e.prefills.busy_share(now_s)) for e in those]
        self.busy_share = fmean(busy)
        times_ms = map(_decode_ms, those, busy)
        self.quickest = [e for _, e in nsmallest(QUICKEST, zip(times_ms, those, strict=True), itemgetter(0))]
        self.present_requests = fmean([e.load.present_requests for e in those])

    def pays(self, alone_ms: float, transfer_ms: float) -> bool:
        """For an answer that takes `alone_ms` undisturbed, whose prompt's KV would travel for `transfer_ms`."""
        busy = min(MOST_BUSY, self.busy_share)
        return transfer_ms < alone_ms * busy / (1 - busy)


def _decode_ms(endpoint: Endpoint, busy_share: float) -> float:
    """Of a token, with what others lose by it, where prompts take that share of the time."""
    speed, crowd = endpoint.speed, endpoint.speed.batch_slowdown * endpoint.load.inflight_requests
    return speed.decode_ms_per_token * ((1 + crowd) / (1 - min(MOST_BUSY, busy_share)) + crowd)


def divisions(prefilling: Mapping[str, Sequence[Endpoint]], answering: Sequence[Endpoint]) -> Mapping[str, Division]:
    """By model, where some engine may do either: compute prompts for others, and answer."""
    return {
        model: Division([e for e in answering if e.model == model])
        for model, able in prefilling.items()
        if any(e.spec.role == "both" for e in able)
    }
