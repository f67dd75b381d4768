"""Session migration in a replay: the router plans moves off hot endpoints, and here their KV is copied.

A copy begins as one more prompt in the queue of its source; then its KV is transferred, the target holds it as if
computed there, and the session's binding flips. A pull is transferred on the path of the request that caused it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from fairlead.core.facts import RequestFacts
from fairlead.core.migration import Rules
from fairlead.core.moves import Move
from fairlead.core.policy import Policy
from fairlead.core.reported import EngineIdentity
from fairlead.errors import UserError
from fairlead.tools.replay.attempts import Asked, AttemptRecord
from fairlead.tools.replay.network import Link
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World

CONNECTORS: Final = {"copy": "mooncake", "pull": "shared", "recompute": ""}  # connector by way of moving
_ANY_THAT_TRANSFERS: Final = EngineIdentity("0.32.0")


class Moving(msgspec.Struct, frozen=True):
    """Rules for moving sessions; `how` is a key of CONNECTORS: what the engines can do."""

    how: str
    rules: Rules = Rules()
    link: Link = Link()


class MovingSimulation(Simulation):
    """A run in which sessions move. `moves` records them."""

    def __init__(
        self,
        world: World,
        workload: Workload,
        policy: Policy,
        moving: Moving,
        *,
        seed: int,
        sink: Callable[[AttemptRecord], None],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        if world.sidecars.count > 1:
            raise UserError("sessions can move in a world with one sidecar only; leave out sidecars, or the +copy")
        super().__init__(world, workload, policy, seed=seed, sink=sink, progress=progress)
        self.moves: list[tuple[float, Move]] = []  # simulated ms, and the move
        self._link = moving.link
        self._exports: dict[int, tuple[Asked, Move, RequestFacts]] = {}
        self.router.planner.rules = moving.rules
        for endpoint in self.endpoints:
            endpoint.respecify(msgspec.structs.replace(endpoint.spec, kv_connector=CONNECTORS[moving.how]))
            endpoint.identified(_ANY_THAT_TRANSFERS)

    def run(self) -> None:
        super().run()
        self.counts.moves, self.counts.moves_back = len(self.moves), self.router.planner.back

    def _send(self, now_ms: float, facts: RequestFacts, asked: Asked) -> None:
        move = asked.in_flight.decision.migration
        if isinstance(move, Move) and move.redirects:
            self.moves.append((now_ms, move))
        if isinstance(move, Move) and move.how == "pull":
            arrives_ms = now_ms + asked.half_rtt_ms + self._link.takes_ms(move.tokens)
            self.agenda.at(arrives_ms, self._pulled, (asked, move))
            return
        super()._send(now_ms, facts, asked)
        if (copy := asked.in_flight.claim_copy()) is not None:
            self.agenda.at(now_ms, self._export, (asked, copy, facts))

    def _pulled(self, now_ms: float, what: tuple[Asked, Move]) -> None:
        asked, move = what
        self._adopt(move, asked.prefix)
        self._arrive(now_ms, asked)

    def _export(self, now_ms: float, what: tuple[Asked, Move, RequestFacts]) -> None:
        asked, move, facts = what
        held = facts.prefix[: move.tokens // self.workload.block_tokens]
        export = msgspec.structs.replace(asked, prefix=held, handed_over=True)
        self._exports[id(export)] = (export, move, msgspec.structs.replace(facts, prefix=held))
        self._submit(now_ms, export, self._places[move.source], len(held) * self.workload.block_tokens, 1)

    def _finished(self, now_ms: float, asked: Asked) -> None:
        export = self._exports.pop(id(asked), None)
        if export is None:
            super()._finished(now_ms, asked)
        else:
            self.agenda.at(now_ms + self._link.takes_ms(export[1].tokens), self._copied, export)

    def _copied(self, now_ms: float, what: tuple[Asked, Move, RequestFacts]) -> None:
        _, move, facts = what
        self._adopt(move, facts.prefix)
        refused = self.router.flip(move, facts, 1.0, now_ms / 1e3)
        self.router.planner.ended(move, now_ms / 1e3, "done" if refused is None else "dropped")
        if refused is None:
            self.moves.append((now_ms, move))

    def _adopt(self, move: Move, prefix: Sequence[int]) -> None:
        """Let the target hold what the source holds of `prefix`."""
        source, target = self.engines[self._places[move.source]], self.engines[self._places[move.target]]
        target.pool.adopt(prefix[: source.pool.match(prefix, move.tokens // self.workload.block_tokens)])
