"""All that serves requests, in one place: the request path works with it, and the admin pages show it.

Made once by `serving.build`. Its parts stay as long as the process; a configuration changes what is in them. A feature
that is off is a part that does nothing, so that nobody has to ask whether it is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from fairlead.admission.admission import Admission
from fairlead.admission.rates import RateLimits
from fairlead.config import Config
from fairlead.core.budget import ObservationBudget
from fairlead.core.calibration import Calibration
from fairlead.core.histogram import DELAY_SECONDS, Histogram
from fairlead.core.learning import Learner
from fairlead.core.router import Router
from fairlead.core.splits import NO_REWRITES, Rewrites
from fairlead.core.stalls import Stalls
from fairlead.core.task_rules import NO_TASKS, TaskRules
from fairlead.decision_log.log import DecisionLog, NoLog
from fairlead.discovery import Discovery
from fairlead.edge.statistics import EdgeStatistics
from fairlead.engines.kv_following import KvFollowing
from fairlead.engines.observer import Observers
from fairlead.engines.remote_prefill import RemotePrefills
from fairlead.extproc.body_reader import BodyReader
from fairlead.extproc.cascade import RequestCascades
from fairlead.extproc.client_keys import ClientKeys
from fairlead.extproc.held_bytes import HeldBytes
from fairlead.extproc.recorder import Recorder
from fairlead.extproc.reuse import RequestReuse
from fairlead.extproc.waiting_room import WaitingRoom
from fairlead.gateway import EndpointDiscovery
from fairlead.migration.mover import Mover
from fairlead.redis import NoStore, Store
from fairlead.tracing import NoTracer, Tracer


def _nobody() -> None:
    """Nobody waits for changes of the pool: it is not followed yet."""


@dataclass(slots=True, kw_only=True)
class Services:
    """Written and read on one event loop. `clock_s` is monotonic, and all these parts use it."""

    config: Config  # in force
    clock_s: Callable[[], float]
    router: Router
    mover: Mover
    reuse: RequestReuse
    cascades: RequestCascades
    observers: Observers
    kv_following: KvFollowing
    prefills: RemotePrefills = field(default_factory=RemotePrefills)
    store: Store = field(default_factory=NoStore)
    log: DecisionLog | NoLog = field(default_factory=NoLog)
    tracer: Tracer | NoTracer = field(default_factory=NoTracer)
    recorder: Recorder = field(default_factory=Recorder)
    learner: Learner = field(default_factory=Learner)
    calibration: Calibration = field(default_factory=Calibration)
    budget: ObservationBudget = field(default_factory=lambda: ObservationBudget(0.0, 0.0))  # nothing is observed
    discovery: Discovery = field(default_factory=lambda: Discovery(_nobody, time.perf_counter))
    reports_served: bool | None = None  # whether the gateway says which engine answered; None: it has not answered yet
    pool_is_known: bool = True  # false until discovery has found the first set, and its engines were asked
    envoys: EndpointDiscovery = field(default_factory=lambda: EndpointDiscovery(_nobody, time.perf_counter))
    session_headers: tuple[bytes, ...]  # in lower case; the first that a request has names its session
    rewrites: Rewrites = NO_REWRITES
    rng: Random = field(default_factory=Random)
    tasks: TaskRules = NO_TASKS
    clients: ClientKeys = field(default_factory=ClientKeys)
    inner_headers: tuple[bytes, ...] = ()  # in lower case; that a cascade passes on to larger models
    tenant_header: bytes = b""  # empty: all requests are of one tenant
    separates_caches: bool = False  # of tenants, at the engines
    max_body_bytes: int
    waiting: WaitingRoom
    rates: RateLimits = field(default_factory=RateLimits)
    reader: BodyReader | None = None  # of long bodies, in processes of its own; None: they are read here, others wait
    held: HeldBytes = field(default_factory=HeldBytes)
    edge: Callable[[], EdgeStatistics] | None = None  # None: the edge that runs keeps none
    stalls: Stalls = field(default_factory=Stalls)
    loop_delays_s: Histogram = field(default_factory=lambda: Histogram(DELAY_SECONDS))
    state: Literal["starting", "ready", "draining"] = "starting"
    started: float = field(default_factory=time.time)  # Unix time, seconds

    @property
    def admission(self) -> Admission:
        return self.waiting.admission

    @property
    def charges_tenants(self) -> bool:
        return self.waiting.is_on or self.rates.is_on

    @property
    def is_ready(self) -> bool:
        """It serves, and which endpoints there are is known, even if there are none now."""
        return self.state == "ready" and self.pool_is_known
