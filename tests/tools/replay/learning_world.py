"""Traffic on simulated engines whose sidecar learns: what their answers tell of, and when an engine becomes slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import msgspec

from fairlead.api.usage import Usage
from fairlead.core.endpoint import Endpoint
from fairlead.core.observation import Observation
from fairlead.policies import build_policy
from fairlead.tools.replay.attempts import Asked
from fairlead.tools.replay.simulation import HTTP_OK, Simulation
from fairlead.tools.replay.workload import Conversation, Turn
from fairlead.tools.replay.world import Observation as Observing
from fairlead.tools.replay.world import World, alike
from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.parameters import EngineParameters
from tests.tools.replay.world import talk, turn, workload

WRONG = {"prefill_ms_per_token": 0.1, "decode_ms_per_token": 20.0}  # the defaults


class Learning(Simulation):
    """Engines that never say what they had cached, and answers that come in one piece, unless told otherwise.

    The sidecar starts from its defaults. `each_second` is called with the time and the endpoints.
    """

    reports_cache = False
    streamed = True
    seen: list[Observation]

    def begin(self, each_second: Callable[[float, Sequence[Endpoint]], None] | None = None) -> None:
        self.seen = []
        for endpoint in self.endpoints:
            endpoint.respecify(msgspec.structs.replace(endpoint.spec, **WRONG))
        if each_second is not None:
            self._each_second = each_second
            self.agenda.every(1.0, 0.0, self._tick)
        self.run()

    def _tick(self, now_ms: float) -> None:
        self._each_second(now_ms / 1e3, self.endpoints)

    def slow_down(self, place: int, times: float) -> None:
        now = self.engines[place].parameters
        self.engines[place].parameters = replace(
            now,
            prefill_ms_per_token=times * now.prefill_ms_per_token,
            decode_ms_per_step=times * now.decode_ms_per_step,
            decode_ms_per_sequence=times * now.decode_ms_per_sequence,
            step_overhead_ms=times * now.step_overhead_ms,
        )

    def _open(self, now_ms: float, asked: Asked) -> None:
        if self.streamed:
            super()._open(now_ms, asked)
        elif self.sidecars[0].budget.open(asked.in_flight.address, now_ms / 1e3):
            self.sidecars[0].budget.ended(self._turn(asked).output_tokens, streamed=True)
            asked.observed = True

    def _end(self, now_s: float, asked: Asked, turn: Turn) -> None:
        in_flight, seen = asked.in_flight, None
        in_flight.served(in_flight.address, HTTP_OK, now_s, in_one_piece=not self.streamed)
        if asked.observed:
            usage = Usage(turn.prompt_tokens, asked.cached_tokens if self.reports_cache else None, turn.output_tokens)
            seen = in_flight.observation(usage, now_s, streamed=self.streamed)
            self.learner.observe(seen, self.router.pool)
            self.seen.append(seen)
        in_flight.ended(now_s, seen)

    def _first_token_seen(self, now_ms: float, asked: Asked) -> None:
        if self.streamed:
            super()._first_token_seen(now_ms, asked)


def conversations(
    count: int, per_second: float, *, turns: int = 1, seed: int = 1, tokens: tuple[int, int] = (200, 4000),
    answer: tuple[int, int] = (20, 300),
) -> list[Conversation]:  # fmt: skip
    """Poisson arrivals of conversations that grow."""
    rng, now_ms, found = Random(seed), 0.0, []
    for number in range(count):
        now_ms += rng.expovariate(per_second / 1e3)
        length, asked = rng.randrange(*tokens), []
        for place in range(rng.randrange(1, turns + 1)):
            asked.append(turn(length, rng.randrange(*answer), of=number, think_ms=5e3 * rng.random() if place else 0.0))
            length += rng.randrange(300, 1500)
        found.append(talk(now_ms, *asked, session=f"s{number}"))
    return found


def learning(
    engines: Sequence[EngineParameters] | int, traffic: Sequence[Conversation], *, kv_tokens: int = 500_000,
    answers_per_second: float = 20.0, messages_per_second: float = 500.0, kind: type[Learning] = Learning,
) -> Learning:  # fmt: skip
    world = alike(engines) if isinstance(engines, int) else _of(engines, kv_tokens)
    world = msgspec.structs.replace(
        world, observation=Observing(answers_per_second=answers_per_second, messages_per_second=messages_per_second)
    )
    # Of fixed weights: what is learned from stays the same traffic when other ones become the default.
    policy = build_policy("fairlead", {"behind_weight": 1.0})
    return kind(world, workload(*traffic), policy, seed=1, sink=lambda _: None)


def _of(engines: Sequence[EngineParameters], kv_tokens: int) -> World:
    plain = alike(len(engines), kv_tokens=kv_tokens)
    specs = [msgspec.structs.replace(s, engine=e) for s, e in zip(plain.endpoints, engines, strict=True)]
    return msgspec.structs.replace(plain, endpoints=tuple(specs))


__all__ = ["Engine", "Learning", "conversations", "learning"]
