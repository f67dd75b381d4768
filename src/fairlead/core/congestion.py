"""How many later requests a prefill delays, wherever it goes: what work costs a pool that it keeps busy.

A request that leaves its cached prefix has it computed again, and that time is taken from all who come before the pool
is idle once more. Nobody of these has been sent yet, so no queue shows them. For `c` servers behind one line, of which
each request takes `s` and which are busy for a share `rho` of the time, the mean wait is about

    W = s * f(rho),   f = rho^(sqrt(2 (c + 1)) - 1) / (c (1 - rho))

and work that is added to some requests delays all of them together, for each millisecond of it, by

    dW/ds = f + rho * f'

milliseconds: next to nothing while some engine is free most of the time, and 12 at a share of 0.9 and eight engines.
Source: Sakasegawa (1977), An approximation formula L_q = alpha rho^beta / (1 - rho); the derivative is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, pow, sqrt
from typing import Final

from fairlead.core.endpoint import Endpoint
from fairlead.core.prefills import PrefillEstimate, remembered_s

_MOST_BUSY: Final = 0.9  # the line grows without bound towards 1, but a busy time does not last for ever
_KEPT_S: Final = 0.25  # shares are of the last half minute


class Congestion:
    """That of the endpoints which serve one name."""

    __slots__ = ("_endpoints", "_requests", "_until_s")

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._requests = 0.0
        self._until_s = -inf

    def requests(self, now_s: float) -> float:
        """How many a prefill that starts now delays by all that it takes, beside those that are there."""
        if now_s >= self._until_s:
            self._until_s = now_s + _KEPT_S
            those = [e.prefills for e in self._endpoints if e.health.healthy]
            self._requests = delayed_requests(busy_share(those, now_s), len(those)) if those else 0.0
        return self._requests


def busy_share(engines: Sequence[PrefillEstimate], now_s: float) -> float:
    """Of these engines' time since any of them was sent a prompt, what the prompts of the last half minute take.

    The time begins with the first prompt, which so shows nothing of how often they come: it counts only as others do.
    """
    seen_s = remembered_s(min(each.began_s for each in engines), now_s)
    if seen_s <= 0:
        return 0.0
    prompts = sum(each.prompts for each in engines)
    busy_s = sum(min(seen_s, each.busy_s(now_s)) for each in engines)
    return busy_s / (seen_s * len(engines)) * (prompts - 1) / prompts


def delayed_requests(busy_share: float, servers: int) -> float:
    """Of requests to come, by a prefill at any of `servers`, which prompts keep busy for that share of their time."""
    busy = min(_MOST_BUSY, busy_share)
    if busy <= 0.0:
        return 0.0
    power, free = sqrt(2 * (servers + 1)) - 1, 1 - busy
    wait = pow(busy, power) / (servers * free)
    return wait + wait * (power + busy / free)
