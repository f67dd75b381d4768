"""The adapters (LoRA) of a simulated engine: few slots, of which running requests hold theirs.

As in vLLM: a request whose adapter has no slot, while running requests hold all of them, is passed over by those behind
it. An adapter that no running request uses stays loaded until its slot is needed; the one used least recently goes
first. A load takes `adapter_load_ms`, in which the engine does nothing else.
"""

from __future__ import annotations

from fairlead.tools.simulate.parameters import EngineParameters


class AdapterSlots:
    """Requests without an adapter have the empty name, and need no slot."""

    def __init__(self, parameters: EngineParameters) -> None:
        self.loads = 0  # so far
        self._slots, self._load_ms = parameters.adapter_slots, parameters.adapter_load_ms
        self._running: dict[str, int] = {}  # requests, by adapter
        self._loaded: dict[str, None] = {}  # the one used last comes last

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._running)

    def admits(self, name: str) -> bool:
        return not name or name in self._running or len(self._running) < self._slots

    def begin(self, name: str) -> float:
        """A request that `admits` let pass begins to run. Milliseconds of the load that comes before."""
        if not name:
            return 0.0
        self._running[name] = self._running.get(name, 0) + 1
        if name in self._loaded:
            del self._loaded[name]
            self._loaded[name] = None
            return 0.0
        if len(self._loaded) == self._slots:
            del self._loaded[next(each for each in self._loaded if each not in self._running)]
        self._loaded[name] = None
        self.loads += 1
        return self._load_ms

    def end(self, name: str) -> None:
        """It runs no more."""
        if name:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]
