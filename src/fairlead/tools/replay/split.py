"""A pool with a static split, as EAR's prototype had it: some engines only prefill, others only decode.

The router chooses among the prefill engines. After the first token a prompt's KV goes over the network to the decoding
engine with the fewest requests, which must find room for it; without room it computes the prompt again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.core.policy import Policy
from fairlead.tools.replay.attempts import Asked, AttemptRecord
from fairlead.tools.replay.network import Link
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import EngineSpec, World
from fairlead.tools.simulate.engine import Engine


class SplitSimulation(Simulation):
    """`world` has the prefill engines; `decoders` is the number of additional ones."""

    def __init__(
        self,
        world: World,
        decoders: Sequence[EngineSpec],
        link: Link,
        workload: Workload,
        policy: Policy,
        *,
        seed: int,
        sink: Callable[[AttemptRecord], None],
    ) -> None:
        super().__init__(world, workload, policy, seed=seed, sink=sink)
        self.recomputed = 0  # prompts that found no room where they should have been decoded
        self._link = link
        self._first_decoder = len(self.engines)
        self._engines.add([Engine(spec.parameters(workload.block_tokens)) for spec in decoders])

    def _arrive(self, now_ms: float, asked: Asked) -> None:
        self._submit(now_ms, asked, asked.endpoint, self._turn(asked).prompt_tokens, 1)
        self._open(now_ms, asked)

    def _finished(self, now_ms: float, asked: Asked) -> None:
        turn = self._turn(asked)
        if asked.handed_over or turn.output_tokens == 1:
            super()._finished(now_ms, asked)
            return
        asked.handed_over = True
        asked.in_flight.prefilled()
        self.agenda.at(now_ms + self._link.takes_ms(turn.prompt_tokens), self._decode, asked)

    def _decode(self, now_ms: float, asked: Asked) -> None:
        places = range(self._first_decoder, len(self.engines))
        place = min(places, key=lambda each: self.engines[each].running + self.engines[each].waiting)
        pool = self.engines[place].pool
        pool.adopt(asked.prefix)
        self.recomputed += pool.match(asked.prefix, len(asked.prefix)) < len(asked.prefix)
        turn = self._turn(asked)
        self._submit(now_ms, asked, place, turn.prompt_tokens + 1, turn.output_tokens - 1)
