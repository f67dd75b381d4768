"""A run that writes the same decision log as `serve`, to test readers of decision logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Decision, Ended, Outcome, Policy
from fairlead.decision_log.columns import Anonymous
from fairlead.tools.replay.attempts import Asked, AttemptRecord
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World


class LoggedSimulation(Simulation):
    """`rows` are those of the log; it has lengths and first tokens for the answers that the world observes.

    It receives decisions in place of a tuner, so a policy that tunes itself keeps its initial weights.
    """

    def __init__(
        self, world: World, workload: Workload, policy: Policy, *, seed: int, sink: Callable[[AttemptRecord], None]
    ) -> None:
        super().__init__(world, workload, policy, seed=seed, sink=sink)
        self.rows: list[tuple[Any, ...]] = []
        self._facts: dict[int, RequestFacts] = {}  # by the number of their decision
        self._anonymous = Anonymous()
        self._models = frozenset(spec.model for spec in world.endpoints)
        self.router.use(policy, self)

    def observe(self, decision: Decision, outcome: Outcome, decided: int, now_s: float) -> None:  # noqa: ARG002
        """As in `core.policy.Tuner`; the weights stay."""
        facts = self._facts.pop(decision.number)
        ended = Ended(
            facts, decision, outcome, decision.addresses[0], b"%d" % decision.number, decision.decided_s, now_s
        )
        self.rows.append(self._anonymous.row(ended, now_s, self._models))

    def _send(self, now_ms: float, facts: RequestFacts, asked: Asked) -> None:
        self._facts[asked.in_flight.decision.number] = facts
        super()._send(now_ms, facts, asked)
