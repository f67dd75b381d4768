"""A run that leaves what `serve` writes of its decisions, so that whatever reads a decision log can be tried on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.core.facts import RequestFacts
from fairlead.core.feedback import Outcome
from fairlead.core.ranking import Policy
from fairlead.core.router import Decision
from fairlead.decision_log.columns import Anonymous, Ended
from fairlead.replay.simulation import Answer, Asked, Simulation
from fairlead.replay.workload import Workload
from fairlead.replay.world import World


class LoggedSimulation(Simulation):
    """`rows` are those of the log; lengths and first tokens are in it of the answers that the world has observed.

    It hears of decisions as a tuner does, so a policy that tunes itself keeps its first weights.
    """

    def __init__(
        self, world: World, workload: Workload, policy: Policy, *, seed: int, sink: Callable[[Answer], None]
    ) -> None:
        super().__init__(world, workload, policy, seed=seed, sink=sink)
        self.rows: list[tuple[Any, ...]] = []
        self._facts: dict[int, RequestFacts] = {}  # by the number of their decision
        self._anonymous = Anonymous()
        self._models = frozenset(spec.model for spec in world.endpoints)
        self.router.use(policy, self)

    def heard(self, decision: Decision, outcome: Outcome, decided: int, now_s: float) -> None:  # noqa: ARG002
        """As `core.feedback.Tuner`; the weights stay."""
        facts = self._facts.pop(decision.number)
        ended = Ended(facts, decision, outcome, decision.addresses[0], b"%d" % decision.number, now_s)
        self.rows.append(self._anonymous.row(ended, self._models))

    def _send(self, now_ms: float, facts: RequestFacts, asked: Asked) -> None:
        self._facts[asked.decision.number] = facts
        super()._send(now_ms, facts, asked)
