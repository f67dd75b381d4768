"""Which of the discovered endpoints are in the pool: those that have said what they serve.

An endpoint that is listed no more leaves at once, unless that would leave its model to engines which have just been
listed and have not served yet: then it stays as a last resort until one of them has, or for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Final

import msgspec

from fairlead.access import Access
from fairlead.core.endpoint import Endpoint
from fairlead.core.pool import Pool
from fairlead.discovery import DiscoveredEndpoint, Discovery
from fairlead.engines.introduction import FoundEngine, Introductions

SETTLE_S: Final = 5.0  # for engines of the first set to say what they serve
HAND_OVER_S: Final = 3.0  # for new engines to serve before the last of those that they replace leaves


class Member(msgspec.Struct, frozen=True):
    """An endpoint that was discovered, and has said what it serves."""

    found: DiscoveredEndpoint
    serves: FoundEngine
    leaving: bool = False  # it is not listed any more

    @property
    def model(self) -> str:
        return self.found.models[0] if self.found.models else self.serves.model


class Membership:
    """`members` is asked again whenever something changed, and every now and then while it `is_waiting`."""

    def __init__(self, discovery: Discovery, changed: Callable[[], None], clock_s: Callable[[], float]) -> None:
        self.is_known = False  # every source has listed its engines, and each was asked, or had time to answer
        self._discovery = discovery
        self._introductions = Introductions(changed)
        self._clock_s = clock_s
        self._synced_s: float | None = None
        self._last: dict[str, Member] = {}
        self._leaving: dict[str, float] = {}  # since when, by address

    @property
    def is_waiting(self) -> bool:
        """Whether time alone may change who is a member."""
        return bool(self._leaving) or (not self.is_known and self._discovery.is_synced)

    def members(self, pool: Pool, access_of: Callable[[str | None], Access]) -> list[Member]:
        """Those of now; `pool` is the present one, `access_of` how engines of a model are reached."""
        found = {each.address: each for each in self._discovery.endpoints()}
        for address in [each for each in self._leaving if each in found]:
            del self._leaving[address]
        listed = found | {address: self._last[address].found for address in self._leaving}
        for endpoint in pool.endpoints:  # another engine may have come at the address of one that is gone
            now, each = endpoint.identity, found.get(endpoint.address)
            before = self._introductions.known.get(endpoint.address)
            if each is None or before is None or not now.models:
                continue
            serves_another = not each.models and before.model not in now.models
            if serves_another or (not each.engine and before.engine != now.engine):
                self._introductions.forget(endpoint.address)
        self._introductions.want(
            {address: access_of(each.models[0] if each.models else None) for address, each in listed.items()}
        )
        known = self._introductions.known
        present = {address: Member(each, known[address]) for address, each in found.items() if address in known}
        staying = self._staying(found, present, pool)
        self._settle()
        self._last = present | {member.found.address: member for member in staying}
        return list(self._last.values())

    async def stop(self) -> None:
        await self._introductions.stop()

    def _staying(self, found: Collection[str], present: dict[str, Member], pool: Pool) -> list[Member]:
        now_s = self._clock_s()
        staying, unlisted = [], {address: member for address, member in self._last.items() if address not in found}
        stays: dict[str, bool] = {}  # by model: of a large pool hundreds may leave at once
        for address, member in unlisted.items():
            since_s = self._leaving.setdefault(address, now_s)
            if now_s - since_s < HAND_OVER_S and not member.found.draining:
                model = member.model
                if model not in stays:
                    others = [e for e in pool.endpoints if e.model == model and e.address not in unlisted]
                    stays[model] = self._is_coming(found, present, model, others) and not any(map(_serves, others))
                if stays[model]:
                    staying.append(msgspec.structs.replace(member, leaving=True))
                    continue
            del self._leaving[address]
        return staying

    def _is_coming(
        self, found: Iterable[str], present: dict[str, Member], model: str, others: Iterable[Endpoint]
    ) -> bool:
        """Whether an engine may soon serve `model` that does not yet; one that has not answered may be of any model."""
        serving = {e.address for e in others if _serves(e)}
        if any(address not in present for address in found):
            return True
        return any(each.model == model and address not in serving for address, each in present.items())

    def _settle(self) -> None:
        """Envoy may not hear of the first few of many engines alone: it would forget the others that it knew."""
        if self.is_known or not self._discovery.statuses or not self._discovery.is_synced:
            return
        now_s = self._clock_s()
        self._synced_s = now_s if self._synced_s is None else self._synced_s
        self.is_known = not self._introductions.awaited or now_s - self._synced_s > SETTLE_S


def _serves(endpoint: Endpoint) -> bool:
    return endpoint.health.healthy and endpoint.answered_s > -inf
