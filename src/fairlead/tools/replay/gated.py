"""A replay with something before the router that holds requests back or refuses them: ours, and rivals by their rules.

Rivals choose endpoints with the same policy, so that only what stands before it differs. Requests are of tenants, some
of which are batch jobs of a lower level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any, Final, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.admission.admission import Admission, Rules
from fairlead.admission.waiting import Verdict, Waiting
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.core.objective import Slo
from fairlead.core.policy import Policy, Refusal
from fairlead.core.reported import EngineReport
from fairlead.core.router import Router
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.sidecar import Sidecar
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import EngineSpec, World
from fairlead.tools.simulate.engine import Engine

What = tuple[int, int, tuple[str, ...], float]
_TICK_MS: Final = 1.0  # of llm-d's cycle, each of which dispatches one request at most
_QUEUE_PER_ENGINE, _KV_FULL = 5, 0.8  # its default thresholds


class Tenancy(msgspec.Struct, frozen=True):
    """Conversations fall to tenants by chance; the first `batch` of them are batch jobs."""

    tenants: int = 6
    batch: int = 2
    batch_share: float = 0.5  # of the conversations
    seed: int = 0

    def tenant(self, conversation: int) -> int:
        drawn = xxh3_64_intdigest(f"{self.seed} {conversation}".encode()) / 2.0**64
        if drawn < self.batch_share:
            return int(drawn / self.batch_share * self.batch)
        return self.batch + int((drawn - self.batch_share) / (1 - self.batch_share) * (self.tenants - self.batch))

    def level(self, tenant: int) -> int:
        return -1 if tenant < self.batch else 0


class GatedSimulation(Simulation):
    """`make` gives what stands before the router."""

    def __init__(
        self,
        world: World,
        workload: Workload,
        policy: Policy,
        make: Callable[[GatedSimulation], Gatekeeper],
        tenancy: Tenancy,
        *,
        seed: int,
        sink: Callable[[AttemptRecord], None],
    ) -> None:
        super().__init__(world, workload, policy, seed=seed, sink=sink)
        self.tenancy = tenancy
        self.waited = 0  # requests that could not begin at once
        self.admission = Admission(self.router)  # off, unless a gatekeeper gives it rules
        self._gatekeeper = make(self)

    def _admit(self, now_ms: float, facts: RequestFacts, what: What) -> None:
        self._gatekeeper.arrived(now_ms, facts, what)

    def _choose(self, router: Router, facts: RequestFacts, now_s: float) -> InFlight | Refusal:
        return self.admission.admit(router, facts, None, now_s)

    def _scrape(self, sidecar: Sidecar, now_ms: float) -> None:
        super()._scrape(sidecar, now_ms)
        self._gatekeeper.scraped(now_ms)

    def _report_of(self, engine: Engine, spec: EngineSpec, now_ms: float) -> EngineReport:
        """With the counters that engines have: they move with each step, so a busy engine's report is never stale."""
        report = super()._report_of(engine, spec, now_ms)
        return msgspec.structs.replace(report, generated_tokens=engine.generated_by(now_ms))

    def begin(self, now_ms: float, facts: RequestFacts, what: What, sent_ms: float) -> Any:
        return self._begin(now_ms, facts, what, sent_ms)

    def refuse(self, now_ms: float, what: What, sent_ms: float) -> None:
        number, place, attempted, asked_ms = what
        self._refused(now_ms, number, place, len(attempted) + 1, asked_ms, sent_ms)

    def at(self, time_ms: float, handle: Callable[[float, Any], None]) -> None:
        self.agenda.at(time_ms, handle, None)


class Gatekeeper(Protocol):
    def arrived(self, now_ms: float, facts: RequestFacts, what: What) -> None: ...

    def scraped(self, now_ms: float) -> None: ...


class NoGate:
    """Every request at once."""

    def __init__(self, simulation: GatedSimulation) -> None:
        self._simulation = simulation

    def arrived(self, now_ms: float, facts: RequestFacts, what: What) -> None:
        self._simulation.begin(now_ms, facts, what, now_ms)

    def scraped(self, now_ms: float) -> None:
        pass


class FairleadGate:
    """`fairlead.admission`, driven as the sidecar drives it."""

    def __init__(self, simulation: GatedSimulation, rules: Rules, slos: Mapping[int, Slo] | None = None) -> None:
        """`slos` by level."""
        self._slos = slos or {}
        self._simulation = simulation
        self.admission = simulation.admission
        self.admission.use(rules, 0.0)
        self._scheduled = False
        self._timer_ms = inf
        for endpoint in simulation.router.pool.endpoints:
            endpoint.notify = self._on_endpoint

    def arrived(self, now_ms: float, facts: RequestFacts, what: What) -> None:
        admission, simulation, now_s = self.admission, self._simulation, now_ms / 1e3
        lane = admission.lane(facts.model)
        tenant = simulation.tenancy.tenant(what[0])
        level = simulation.tenancy.level(tenant)
        slo = self._slos.get(level)
        if slo is not None:
            facts = msgspec.structs.replace(facts, slo=slo)
        if admission.passes(lane, level, now_s, facts):
            self._begin(now_ms, facts, what, now_ms)
            return
        simulation.waited += 1

        def decide(verdict: Verdict) -> float:
            if verdict == "go":
                return self._begin(simulation.now_ms, facts, what, now_ms)
            simulation.refuse(simulation.now_ms, what, now_ms)
            return 0.0

        useful_s = admission.longest_useful_wait_s(lane, facts, now_s)
        waiting = Waiting(
            lane,
            decide,
            level=level,
            tenant=str(tenant).encode(),
            cost_ms=admission.expected_ms(lane, facts),
            request=facts,
            arrived_s=now_s,
            expires_s=now_s + min(admission.band(level).longest_wait_s, useful_s),
            due_s=inf if slo is None else now_s + slo.ttft_ms / 1e3,
        )
        if admission.enter(waiting, now_s):
            self._wake(now_ms)

    def scraped(self, now_ms: float) -> None:
        pass

    def _begin(self, now_ms: float, facts: RequestFacts, what: What, sent_ms: float) -> float:
        if facts.slo is not None:
            facts = msgspec.structs.replace(facts, slo=facts.slo.after(now_ms - sent_ms))
        asked = self._simulation.begin(now_ms, facts, what, sent_ms)
        return 0.0 if asked is None else self.admission.began(asked.in_flight)

    def _on_endpoint(self, _: Endpoint) -> None:
        if self.admission.queue.requests:
            self._wake(self._simulation.now_ms)

    def _wake(self, now_ms: float) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._simulation.at(now_ms, self._release)

    def _release(self, now_ms: float, _: object) -> None:
        self._scheduled = False
        if self.admission.release(now_ms / 1e3):
            self._wake(now_ms)
            return
        due_ms = self.admission.next_event_s() * 1e3
        if self.admission.queue.requests and isfinite(due_ms):
            due_ms = max(now_ms + 20.0, due_ms)
            if due_ms < self._timer_ms or self._timer_ms <= now_ms:
                self._timer_ms = due_ms
                self._simulation.at(due_ms, self._release)


class StaticLimit:
    """So many requests in flight for each engine, and one queue for the others, first come first served."""

    def __init__(self, simulation: GatedSimulation, per_engine: int, longest_wait_s: float) -> None:
        self._simulation = simulation
        self._limit = per_engine * len(simulation.endpoints)
        self._longest_ms = longest_wait_s * 1e3
        self._queue: deque[tuple[RequestFacts, What, float]] = deque()
        for endpoint in simulation.router.pool.endpoints:
            endpoint.notify = self._on_endpoint

    def arrived(self, now_ms: float, facts: RequestFacts, what: What) -> None:
        self._queue.append((facts, what, now_ms))
        self._release(now_ms, None)
        self._simulation.waited += any(entry[1] is what for entry in self._queue)

    def scraped(self, now_ms: float) -> None:
        pass

    def _on_endpoint(self, _: Endpoint) -> None:
        if self._queue:
            self._simulation.at(self._simulation.now_ms, self._release)

    def _release(self, now_ms: float, _: object) -> None:
        queue, simulation = self._queue, self._simulation
        while queue and now_ms - queue[0][2] > self._longest_ms:
            _, what, sent_ms = queue.popleft()
            simulation.refuse(now_ms, what, sent_ms)
        while queue and sum(e.load.inflight_requests for e in simulation.endpoints) < self._limit:
            facts, what, sent_ms = queue.popleft()
            simulation.begin(now_ms, facts, what, sent_ms)


class LlmDFlowControl:
    """llm-d's flow control with its defaults: strict bands, tenants in turns, one dispatch a cycle, a gate of the pool.

    Saturation is the mean over endpoints of max(waiting / 5, KV / 0.8) as scraped. Source: llm-d-router after v0.10.0.
    """

    def __init__(self, simulation: GatedSimulation, longest_wait_s: float) -> None:
        self._simulation = simulation
        self._longest_ms = longest_wait_s * 1e3
        self._flows: dict[int, dict[int, deque[tuple[RequestFacts, What, float]]]] = {}  # by level and tenant, in turn
        self._ticking = False

    def arrived(self, now_ms: float, facts: RequestFacts, what: What) -> None:
        tenant = self._simulation.tenancy.tenant(what[0])
        flows = self._flows.setdefault(self._simulation.tenancy.level(tenant), {})
        flows.setdefault(tenant, deque()).append((facts, what, now_ms))
        self._cycle(now_ms)
        self._simulation.waited += any(entry[1] is what for entry in flows.get(tenant, ()))
        self._tick_on(now_ms)

    def scraped(self, now_ms: float) -> None:
        self._tick_on(now_ms)

    def _tick_on(self, now_ms: float) -> None:
        if not self._ticking and any(self._flows.values()):
            self._ticking = True
            self._simulation.at(now_ms + _TICK_MS, self._tick)

    def _tick(self, now_ms: float, _: object) -> None:
        self._ticking = False
        if self._cycle(now_ms):
            self._tick_on(now_ms)  # else nothing changes before the next reports

    def _cycle(self, now_ms: float) -> bool:
        """Whether a request was dispatched."""
        for flows in self._flows.values():
            for tenant in list(flows):
                queue = flows[tenant]
                while queue and now_ms - queue[0][2] > self._longest_ms:
                    _, what, sent_ms = queue.popleft()
                    self._simulation.refuse(now_ms, what, sent_ms)
                if not queue:
                    del flows[tenant]
        if saturation(self._simulation) >= 1:
            return False
        for level in sorted(self._flows, reverse=True):
            flows = self._flows[level]
            if flows:
                tenant = next(iter(flows))
                queue = flows.pop(tenant)
                facts, what, sent_ms = queue.popleft()
                if queue:
                    flows[tenant] = queue  # behind the others
                self._simulation.begin(now_ms, facts, what, sent_ms)
                return True
        return False


class LlmDShedding:
    """llm-d without flow control: requests of a negative level are refused while the pool is saturated."""

    def __init__(self, simulation: GatedSimulation) -> None:
        self._simulation = simulation

    def arrived(self, now_ms: float, facts: RequestFacts, what: What) -> None:
        tenancy = self._simulation.tenancy
        if tenancy.level(tenancy.tenant(what[0])) < 0 and saturation(self._simulation) >= 1:
            self._simulation.refuse(now_ms, what, now_ms)
        else:
            self._simulation.begin(now_ms, facts, what, now_ms)

    def scraped(self, now_ms: float) -> None:
        pass


def saturation(simulation: Simulation) -> float:
    """By llm-d's `utilization` detector."""
    reports = [endpoint.report for endpoint in simulation.endpoints]
    loads = [max((r.waiting_requests or 0) / _QUEUE_PER_ENGINE, (r.kv_usage or 0.0) / _KV_FULL) for r in reports]
    return sum(loads) / len(loads)
