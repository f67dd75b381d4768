"""How long a prompt's KV takes to come to an endpoint: learned from requests whose prompt another endpoint computed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fairlead.core.endpoint import Endpoint

LEAST_TOKENS: Final = 256  # of a shorter prompt the transfer is lost in everything else that a first token takes
_WEIGHT: Final = 0.2  # of the newest
_MOST_MS_PER_TOKEN: Final = 100.0


class TransferTimes:
    """Ms per token by the endpoint that KV comes to; until something was learned, as it is configured."""

    def __init__(self) -> None:
        self._learned: dict[str, float] = {}

    def ms_per_token(self, target: Endpoint) -> float:
        return self._learned.get(target.address, target.spec.transfer_ms_per_token)

    def observe(self, target: Endpoint, tokens: int, took_ms: float) -> None:
        """`tokens` came in `took_ms`, without what every transfer takes to start."""
        if tokens < LEAST_TOKENS:
            return
        before = self.ms_per_token(target)
        seen = min(max(0.0, took_ms) / tokens, _MOST_MS_PER_TOKEN)
        self._learned[target.address] = before + _WEIGHT * (seen - before)

    def forget_all_but(self, addresses: Collection[str]) -> None:
        self._learned = {address: ms for address, ms in self._learned.items() if address in addresses}
