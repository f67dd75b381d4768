"""The calibration's sessions on the engine model alone: on a simulated clock, so that this machine has no influence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_request import EngineRequest, EventKind
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.tokens import from_ids
from lab.calibration.load import OUTPUT_TOKENS, Session
from lab.streamed import Took

_Place = tuple[int, int]  # session, turn


class _Asked:
    """A request in flight."""

    def __init__(self, client: Iterator[_Place], place: _Place, asked_ms: float) -> None:
        self.client = client
        self.place = place
        self.asked_ms = asked_ms
        self.first_token_ms = 0.0


def modelled(parameters: EngineParameters, sessions: Sequence[Session], at_a_time: int) -> list[Took]:
    """As `load.converse`, from an empty cache. A client asks again as soon as it has its answer."""
    engine = Engine(parameters)
    under_way: dict[str, _Asked] = {}
    took: dict[_Place, Took] = {}

    def ask(client: Iterator[_Place], now_ms: float) -> None:
        place = next(client, None)
        if place is None:
            return
        session, turn = place
        prompt, name = sessions[session][turn], f"{session}-{turn}"
        under_way[name] = _Asked(client, place, now_ms)
        hashes = from_ids(prompt, parameters.block_size).block_hashes
        engine.submit(EngineRequest(name, len(prompt), OUTPUT_TOKENS, hashes), now_ms)

    waiting = iter(range(len(sessions)))
    for _ in range(at_a_time):
        ask(_turns(waiting, sessions), 0.0)
    while (now_ms := engine.next_step_ms()) is not None:
        for event in engine.step(now_ms):
            asked = under_way[event.request_id]
            if event.kind is EventKind.FIRST_TOKEN:
                asked.first_token_ms = now_ms - asked.asked_ms
            elif event.kind is EventKind.FINISHED:
                session, turn = asked.place
                tokens = len(sessions[session][turn]), event.cached_tokens, event.generated_tokens
                took[asked.place] = Took(asked.first_token_ms, now_ms - asked.asked_ms, *tokens)
                ask(asked.client, now_ms)
    return [took[place] for place in sorted(took)]


def _turns(waiting: Iterator[int], sessions: Sequence[Session]) -> Iterator[_Place]:
    """The turns of one client: all of a session, then of the next session not yet started."""
    for session in waiting:  # one iterator for all
        for turn in range(len(sessions[session])):
            yield session, turn
