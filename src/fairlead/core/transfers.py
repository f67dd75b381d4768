"""How long a prompt's KV takes to come to an endpoint: learned from requests whose prompt another endpoint computed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fairlead.core.endpoint import Endpoint
from fairlead.core.observation import Observation
from fairlead.core.policy import Decision
from fairlead.core.prefill_decode import TRANSFER_SETUP_MS

LEAST_TOKENS: Final = 256  # of a shorter prompt the transfer is lost in everything else that a first token takes
_WEIGHT: Final = 0.2  # of the newest
_MOST_MS_PER_TOKEN: Final = 100.0


class TransferTimes:
    """Ms per token by the endpoint that KV comes to; until something was learned, as it is configured."""

    def __init__(self) -> None:
        self._learned: dict[str, float] = {}

    def ms_per_token(self, target: Endpoint) -> float:
        return self._learned.get(target.address, target.spec.transfer_ms_per_token)

    def answered(self, target: Endpoint, decision: Decision, seen: Observation) -> None:
        """`target` answered a request. Where it was the first choice, and yet not `direct`, its KV came from elsewhere.

        What its first token took is then the way of the KV, where nothing else was to be computed there.
        """
        if decision.prefill is None or seen.direct or target.address != decision.addresses[0]:
            return
        tokens = (seen.prompt_tokens or seen.estimated_tokens) - decision.cached_tokens
        if seen.first_token_ms is None or seen.queued_tokens or seen.prefilled_tokens or tokens < LEAST_TOKENS:
            return
        speed = target.speed
        steps_ms = seen.first_tokens * speed.decode_ms_per_token * (1 + speed.batch_slowdown * seen.decoding_before)
        took_ms = seen.first_token_ms - seen.rtt_ms - steps_ms - TRANSFER_SETUP_MS
        before = self.ms_per_token(target)
        ms_per_token = min(max(0.0, took_ms) / tokens, _MOST_MS_PER_TOKEN)
        self._learned[target.address] = before + _WEIGHT * (ms_per_token - before)

    def forget_all_but(self, addresses: Collection[str]) -> None:
        self._learned = {address: ms for address, ms in self._learned.items() if address in addresses}
