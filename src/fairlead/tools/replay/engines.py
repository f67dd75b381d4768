"""The engines of a run: their steps, and the requests that others than the trace's clients send them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fairlead.errors import UserError
from fairlead.tools.replay.agenda import Agenda
from fairlead.tools.replay.world import World
from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_request import EngineRequest, Event, RequestRefusedError

_Arrivals = Iterator[tuple[float, EngineRequest]]


class Engines:
    """`on_event` gets each event of their steps."""

    def __init__(self, agenda: Agenda, on_event: Callable[[float, Event], None]) -> None:
        self.all: list[Engine] = []
        self.busy_ms: list[float] = []  # for each: time with a step under way
        self._agenda = agenda
        self._on_event = on_event
        self._due: list[float | None] = []
        self._busy_since: list[float | None] = []

    def add(self, engines: Sequence[Engine]) -> None:
        self.all += engines
        self.busy_ms += [0.0] * len(engines)
        self._due += [None] * len(engines)
        self._busy_since += [None] * len(engines)

    def submit(self, place: int, request: EngineRequest, now_ms: float) -> None:
        """Raises RequestRefusedError if it can never fit the engine at `place`."""
        self.all[place].submit(request, now_ms)
        if self._busy_since[place] is None:
            self._busy_since[place] = now_ms
        self._plan_step(place, now_ms)

    def _plan_step(self, place: int, now_ms: float) -> None:
        due_ms = self.all[place].next_step_ms()
        if due_ms is None:
            self._due[place] = None
            self.busy_ms[place] += now_ms - (self._busy_since[place] or 0.0)
            self._busy_since[place] = None
        elif due_ms != self._due[place]:
            self._due[place] = due_ms
            self._agenda.step_at(due_ms, self._step, place)

    def _step(self, now_ms: float, place: int) -> None:
        if now_ms != self._due[place]:
            return  # something arrived meanwhile, and the step ends at another time
        self._due[place] = None
        for event in self.all[place].step(now_ms):
            self._on_event(now_ms, event)
        self._plan_step(place, now_ms)

    def begin_foreign(self, world: World, seed: int, block_tokens: int) -> None:
        """Let requests of somebody else arrive, as `world` says, while any conversation is open."""
        for place in range(len(world.endpoints)):
            self._await_foreign(place, world.foreign.arrivals(seed, place, block_tokens))

    def _await_foreign(self, place: int, arrivals: _Arrivals) -> None:
        arrival = next(arrivals, None)
        if arrival is not None:
            self._agenda.at(arrival[0], self._foreign, (place, arrivals, arrival[1]))

    def _foreign(self, now_ms: float, what: tuple[int, _Arrivals, EngineRequest]) -> None:
        """A request of somebody else reaches an engine; nobody here waits for its answer."""
        place, arrivals, request = what
        if not self._agenda.open:
            return
        try:
            self.submit(place, request, now_ms)
        except RequestRefusedError as error:
            raise UserError(f"foreign requests do not fit the engines of this world: {error}") from None
        self._await_foreign(place, arrivals)
