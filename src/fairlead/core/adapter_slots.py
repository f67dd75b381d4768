"""Which adapters (LoRA) an engine has in its slots, as far as is known, and what a request for another has to wait for.

vLLM names the adapters of requests, and those that wait among those that run; SGLang only counts its slots; neither
names an adapter that is loaded and idle. So what was sent there lately is kept here. Engines evict the adapter that was
used least recently, and so does this: at most as many idle ones are kept as there are slots.

A load keeps the engine from all else, as a prefill does, so it is counted in the tokens whose prefill takes as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from fairlead.core.endpoint import Endpoint
    from fairlead.core.reported import EngineReport

USUAL_LOAD_MS: Final = 100.0  # until loads were seen: some 100 MB, from a local disk or the host's memory


class AdapterNeed(NamedTuple):
    """What has to happen at an endpoint before it can begin a request for an adapter that has no slot there."""

    load_tokens: int  # of prefill that take as long as the load; 0: another request has it loaded
    wait_ms: float  # for a slot, all of which have running requests


class AdapterSlots:
    """Those of one engine."""

    __slots__ = ("_busy", "_elsewhere", "_generation", "_idle", "_known", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._busy: dict[str, int] = {}  # requests in flight from here, by adapter; in the order of their first one
        self._known: set[str] = set()  # of those, the ones that the engine has surely loaded
        self._idle: dict[str, None] = {}  # loaded and not in use; the one used last comes last
        self._elsewhere: frozenset[str] = frozenset()  # adapters of requests that others sent, as the engine reports
        self._generation = 0

    @property
    def loaded(self) -> tuple[str, ...]:
        """Those that should have a slot, the one used last comes last."""
        room = max(0, self.slots - len(self._elsewhere))
        return (*self._idle, *sorted(self._elsewhere), *islice(self._busy, room))

    def begin(self, name: str) -> None:
        """A request for `name` was sent there."""
        if name in self._idle:
            del self._idle[name]
            self._known.add(name)
        elif name in self._elsewhere:
            self._elsewhere -= {name}
            self._known.add(name)
        self._busy[name] = self._busy.get(name, 0) + 1
        self._trim()

    def end(self, name: str, *, served: bool) -> None:
        """That request ended; `served` if the engine answered it, and so has loaded the adapter."""
        if served:
            self._known.add(name)
        self._busy[name] -= 1
        if self._busy[name]:
            return
        del self._busy[name]
        if name in self._known:
            self._known.remove(name)
            self._idle[name] = None
            self._trim()

    def reported(self, report: EngineReport) -> None:
        """The engine reported its slots and who uses them; of an idle engine the names are those of its last step."""
        if report.adapter_slots is None:
            return
        self.slots = report.adapter_slots
        busy = self._busy
        named = (*report.running_adapters, *report.waiting_adapters) if report.works and not report.stale else ()
        before, self._elsewhere = self._elsewhere, frozenset(named).difference(busy)
        for name in before.difference(self._elsewhere, busy):
            self._idle[name] = None
        for name in self._elsewhere:
            self._idle.pop(name, None)
        self._trim()

    def restarted(self, generation: int) -> None:
        """Another process has its port: nothing is loaded there."""
        if generation != self._generation:
            self._generation = generation
            self._idle.clear()
            self._known.clear()
            self._elsewhere = frozenset()

    def waits_for(self, name: str) -> tuple[bool, int] | None:
        """None if `name` has a slot; else whether it must be loaded, and how many slots must be given up before."""
        if name in self._idle or name in self._elsewhere:
            return None
        free = self.slots - len(self._elsewhere)
        if name in self._busy:
            place = next(i for i, each in enumerate(self._busy) if each == name)
            return None if place < free else (False, place - free + 1)
        return True, max(0, len(self._busy) + 1 - free)

    def _trim(self) -> None:
        room = max(0, self.slots - len(self._busy) - len(self._elsewhere))
        while len(self._idle) > room:
            del self._idle[next(iter(self._idle))]


def adapter_needs(name: str, endpoints: Sequence[Endpoint]) -> dict[str, AdapterNeed]:
    """By address, of those of `endpoints` at which the adapter has no slot.

    With requests that last equally long and began at any time, the next of n slots is free after 1 / (n + 1) of that.
    """
    needs: dict[str, AdapterNeed] = {}
    for endpoint in endpoints:
        adapters, speed = endpoint.adapters, endpoint.speed
        adapters.restarted(endpoint.generation)
        waits = adapters.waits_for(name)
        if waits is None:
            continue
        loads, turns = waits
        answer_ms = speed.answer_tokens * speed.decode_ms_per_token
        answer_ms *= 1 + speed.batch_slowdown * endpoint.load.decoding_requests
        needs[endpoint.address] = AdapterNeed(
            round(speed.adapter_load_ms / speed.prefill_ms_per_token) if loads and speed.prefill_ms_per_token else 0,
            answer_ms * turns / (adapters.slots + 1),
        )
    return needs
