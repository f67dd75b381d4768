"""A replay of a pool with roles: one engine computes a prompt and another decodes it, where the router's rule says so.

As in the sidecar, a request is held while its prompt is computed, by an engine that gives one token; then it goes to
the engine that decodes, which fetches what it lacks of the KV over the link, and computes what is less than a block.
Until it has room for it, the KV stays where it was computed and takes room there, as with vLLM's connectors. Unlike
there it travels meanwhile, and is kept for as long as that takes.
"""

from __future__ import annotations

import msgspec

from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Refusal
from fairlead.core.reported import EngineIdentity
from fairlead.core.router import Router
from fairlead.tools.replay.attempts import Asked
from fairlead.tools.replay.simulation import Simulation

_TRANSFERS: EngineIdentity = EngineIdentity("0.32.0")


class PrefillDecodeSimulation(Simulation):
    """`splits` counts the requests whose prompt another engine computed."""

    splits = 0

    def run(self) -> None:
        for sidecar in self.sidecars:
            for endpoint in sidecar.endpoints:
                endpoint.identified(_TRANSFERS)
        self._prefills: dict[int, tuple[Asked, RequestFacts]] = {}
        super().run()

    def _choose(self, router: Router, facts: RequestFacts, now_s: float) -> InFlight | Refusal:
        return super()._choose(router, msgspec.structs.replace(facts, may_split=True), now_s)

    def _launch(self, now_ms: float, facts: RequestFacts, asked: Asked) -> None:
        hop = asked.in_flight.hop
        if hop is None:
            super()._launch(now_ms, facts, asked)
            return
        self.splits += 1
        place = self._places[hop.address]
        first = msgspec.structs.replace(asked, endpoint=place, handed_over=True)
        self._prefills[id(first)] = asked, facts
        self.agenda.at(now_ms + self._rtts[place].at(now_ms) / 2, self._prefill, first)

    def _prefill(self, now_ms: float, first: Asked) -> None:
        self._submit(now_ms, first, first.endpoint, self._turn(first).prompt_tokens, 1)

    def _first_token(self, now_ms: float, asked: Asked, cached_tokens: int) -> None:
        if id(asked) in self._prefills:
            asked.cached_tokens = cached_tokens
        elif asked.pinned is not None:
            (place, blocks), asked.pinned = asked.pinned, None
            self.engines[place].pool.release(asked.prefix, blocks, 0)
        super()._first_token(now_ms, asked, cached_tokens)

    def _finished(self, now_ms: float, asked: Asked) -> None:
        if id(asked) not in self._prefills:
            super()._finished(now_ms, asked)
            return
        source, prefix = self.engines[asked.endpoint].pool, asked.prefix
        blocks = source.match(prefix, len(prefix))
        source.acquire(prefix, blocks, 0)
        self._prefills[id(asked)][0].pinned = asked.endpoint, blocks
        self.agenda.at(now_ms + self._rtts[asked.endpoint].at(now_ms) / 2, self._prefilled, asked)

    def _prefilled(self, now_ms: float, first: Asked) -> None:
        asked, facts = self._prefills.pop(id(first))
        turn, in_flight = self._turn(asked), asked.in_flight
        assert in_flight.hop is not None
        seen = in_flight.hop.observation(turn.prompt_tokens, first.cached_tokens, now_ms / 1e3)
        asked.sidecar.learner.observe(seen, asked.sidecar.router.pool)
        in_flight.prefilled_elsewhere(now_ms / 1e3)
        in_flight.sent(facts, now_ms / 1e3)
        pool = self.engines[asked.endpoint].pool
        held = pool.match(asked.prefix, len(asked.prefix)) * self.workload.block_tokens
        arrives_ms = now_ms + asked.half_rtt_ms + self.world.link.takes_ms(turn.prompt_tokens - held)
        self.agenda.at(arrives_ms, self._arrive, asked)
