"""One engine at one address: what it is, and what it carries.

An `Endpoint` is the one mutable thing in the core. The ledger writes its load, the observers in `engines` its report
and health, the learner its speed; policies never see it, only the `Candidate` made of it for one request. What is kept
between decisions (`core.price_table`) compares revisions: whatever a cost is made of is a frozen value here, so that it
can only change by being replaced, and each replacement makes a new revision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec
import xxhash

from fairlead.access import PLAIN, Access
from fairlead.core.adapter_slots import USUAL_LOAD_MS, AdapterSlots
from fairlead.core.capability import NEUTRAL, Capability
from fairlead.core.health import HALF, SILENCE_S, UNKNOWN_TO_ENVOY, WARMING_IN, Health
from fairlead.core.load import Load
from fairlead.core.prefill_work import work_tokens
from fairlead.core.prefills import PrefillEstimate
from fairlead.core.reported import UNIDENTIFIED, UNKNOWN, EngineIdentity, EngineReport
from fairlead.core.running_limit import RunningLimit
from fairlead.core.strangers import NOBODY, strangers
from fairlead.core.streak import Streak
from fairlead.core.stream_ends import StreamEnds
from fairlead.core.warm_in import WarmIn
from fairlead.dialects import DIALECTS

_T = TypeVar("_T")

_TOO_MANY_REQUESTS: Final = 429
_UNAVAILABLE: Final = 503
MOST_PASSED_OVER: Final = 3  # requests, of an endpoint that has never answered any,
PASSED_OVER_S: Final = 1.0  # over so long
_LATE: Final = 3.0  # times what was expected of a request
_NEWEST: Final = 0.05  # its weight in how long our prompts usually are
USUAL_SLOWDOWN: Final = 0.015  # of decoding alone, by each other request; until samples at different loads show it
USUAL_ANSWER_TOKENS: Final = 256.0  # until answers were observed

NO_CAPABILITIES: Final[Mapping[str, Capability]] = MappingProxyType({})

# `prefill`: it computes prompts for others and answers nobody; `decode`: it answers, and computes no prompt for others.
Role = Literal["both", "prefill", "decode"]
BY_ROOM: Final = "sglang"  # the connector of engines that do one half of a request each, and both at the same time
BY_PROXY: Final = "proxy"  # the connector of an engine whose own proxy asks the prefill endpoint that a header names


class EndpointSpec(msgspec.Struct, frozen=True, gc=False):
    """An endpoint as configured. Its times hold until answers teach better ones (`core.learning`)."""

    address: str  # host:port, the host an IP address
    model: str
    prefill_ms_per_token: float = 0.1
    decode_ms_per_token: float = 20.0  # alone on the engine
    prefill_ratio: float = 1.0  # of its configured time to that of its model: how much slower its kind of engine is
    decode_ratio: float = 1.0
    prefill_configured: bool = False  # by its model or its own; else what is above is no more than usual
    decode_configured: bool = False
    max_model_len: int | None = None
    capability: Capability = NEUTRAL
    region: str = ""
    engine: str = "vllm"
    kv_connector: str = ""  # by which its KV can go elsewhere: mooncake, nixl, or a store that it shares; empty: none
    kv_bootstrap: str = ""  # host:port of the server by which other engines find its KV, where the connector has one
    role: Role = "both"
    transfer_ms_per_token: float = 0.1  # for KV to come here from another endpoint, until requests teach a better value
    access: Access = PLAIN
    capabilities: Mapping[str, Capability] = NO_CAPABILITIES  # of adapters that have their own, by name

    @property
    def answers_alone(self) -> bool:
        """Whether it can compute the prompt of what it answers."""
        return self.kv_connector != BY_ROOM

    def capability_of(self, name: str) -> Capability:
        """Of an adapter or a second name; that of the model where it has none of its own, and where `name` is empty."""
        return self.capabilities.get(name, self.capability) if name else self.capability


class Speed(msgspec.Struct, frozen=True, gc=False):
    """How fast an engine is, as far as is known."""

    prefill_ms_per_token: float
    decode_ms_per_token: float  # alone on the engine
    batch_slowdown: float = USUAL_SLOWDOWN  # of decoding, by each other request there
    answer_tokens: float = USUAL_ANSWER_TOKENS
    adapter_load_ms: float = USUAL_LOAD_MS
    fixed_ms: float = 0.0  # of a request, whatever its length: HTTP, tokenizing, the engine's own steps; until learned
    prefill_growth: float = 0.0  # of prefill, by each token of the prompt before it: see `core.prefill_work`

    def prefill_ms(self, tokens: int, cached: int) -> float:
        """Of a prompt of `tokens`, alone on the engine."""
        computed, growth = tokens - cached if cached < tokens else 0, self.prefill_growth
        return self.prefill_ms_per_token * (work_tokens(computed, cached, growth) if growth else computed)

    def pending_ms(self, load: Load) -> float:
        """Of all that waits for prefill."""
        return self.prefill_ms_per_token * load.pending_work_tokens(self.prefill_growth)


class _Revised(property, Generic[_T]):
    """An attribute whose every assignment makes a new revision of its endpoint; read without a Python frame."""

    def __init__(self, slot: str) -> None:
        def assign(endpoint: Endpoint, value: _T) -> None:
            setattr(endpoint, slot, value)
            endpoint.revision += 1

        super().__init__(attrgetter(slot), assign)

    if TYPE_CHECKING:

        def __get__(self, endpoint: Any, owner: type | None = None) -> _T: ...  # type: ignore[override]

        def __set__(self, endpoint: Any, value: _T) -> None: ...


class Endpoint:
    """`own` is this sidecar's load, `peers` that of those that share a store with it, and `load` their sum."""

    __slots__ = (
        "_generation",
        "_load",
        "_max_model_len",
        "_passed_over_s",
        "_rtt_ms",
        "_rtt_spread_ms",
        "_spec",
        "_speed",
        "_strangers",
        "adapters",
        "address",
        "answered_s",
        "failing_s",
        "health",
        "hops",
        "identity",
        "indexed_generation",
        "key",
        "last_chosen",
        "model",
        "models_are_doubted",
        "notify",
        "own",
        "passed_over",
        "peers",
        "prefilled_attended_tokens",
        "prefilled_tokens",
        "prefills",
        "refused_s",
        "report",
        "revision",
        "running_limit",
        "sent_tokens",
        "served_s",
        "stream_ends",
        "usual_attended_tokens",
        "usual_prefill_tokens",
        "warm_in",
    )

    _generation: int
    _load: Load  # the request path reads the slot: a property takes six times as long
    _max_model_len: int | None
    _rtt_ms: float
    _rtt_spread_ms: float
    _spec: EndpointSpec
    _speed: Speed
    _strangers: Load
    generation = _Revised[int]("_generation")  # grows when the engine restarts: what it had cached is gone
    load = _Revised[Load]("_load")
    max_model_len = _Revised["int | None"]("_max_model_len")
    rtt_ms = _Revised[float]("_rtt_ms")
    rtt_spread_ms = _Revised[float]("_rtt_spread_ms")  # by which measurements of it differ; at most itself
    spec = _Revised[EndpointSpec]("_spec")
    speed = _Revised[Speed]("_speed")
    strangers = _Revised[Load]("_strangers")  # of routers and clients that we know nothing of; see `core.strangers`

    def __init__(self, spec: EndpointSpec) -> None:
        self.revision = 0
        self.report: EngineReport = UNKNOWN
        self.identity: EngineIdentity = UNIDENTIFIED
        self.models_are_doubted = False  # it answered a request 404: it may not serve what it listed
        self.health = Health()
        self.hops = Streak()  # prompts for others that came to nothing, whoever answers what here
        self.own = Load()
        self.peers = Load()
        self.load = Load()
        self.rtt_ms = 0.0
        self.rtt_spread_ms = 0.0
        self.answered_s = -inf  # when a request last had an answer here, or the end of one
        self._passed_over_s = 0.0  # since when
        self.served_s = -inf  # when a request last succeeded here
        self.failing_s = -inf  # since when requests fail here; none does once one has succeeded later
        self.refused_s = -inf  # when it last refused one, as its queue was full
        self.running_limit = RunningLimit()
        self.warm_in = WarmIn()
        self.adapters = AdapterSlots(DIALECTS[spec.engine].usual_adapter_slots)
        self.notify: Callable[[Endpoint], None] | None = None  # that there may be room here, for those that wait
        self.passed_over = 0  # requests that chose it and were answered elsewhere, since its last answer
        self.generation = 0
        self.sent_tokens = 0  # of our prompts, to compute, since the start
        self.prefilled_tokens = 0
        self.prefilled_attended_tokens = 0
        self.usual_prefill_tokens = 0.0  # of one of our prompts
        self.usual_attended_tokens = 0.0
        self.strangers = NOBODY
        self.prefills = PrefillEstimate()
        self.stream_ends = StreamEnds()
        self.indexed_generation = 0  # of the engine that holds what the prefix index keeps
        self.last_chosen = 0  # the number of the decision that chose it last
        self.respecify(spec)

    def respecify(self, spec: EndpointSpec) -> None:
        """Become what `spec` says, and keep what is known of health and load."""
        self.spec = spec
        self.address, self.model = spec.address, spec.model  # read for every candidate: one look-up less
        self.key = xxhash.xxh3_64_intdigest(spec.address.encode())  # the same for all sidecars: see `core.rendezvous`
        self.speed = Speed(spec.prefill_ms_per_token, spec.decode_ms_per_token)
        self.identified(self.identity)

    def identified(self, identity: EngineIdentity) -> None:
        """The engine reported what it is; the shorter of its context length and the configured one counts."""
        self.identity = identity
        lengths = [n for n in (self.spec.max_model_len, identity.max_model_len) if n is not None]
        self.max_model_len = min(lengths, default=None)
        self.health.withhold(HALF, active=self.spec.answers_alone and not identity.serves_alone)

    def reported(self, report: EngineReport) -> None:
        """The engine reported its state. A number that moves shows that it has stepped since its last report."""
        before, self.report = self.report, report
        self.adapters.reported(report)
        if report.stale or report.read_s != before.read_s:  # else it is the same page again
            usual = self.usual_prefill_tokens, self.usual_attended_tokens
            others = strangers(before, report, self._load.present_requests, *usual)
            if others != self._strangers:
                self.strangers = others
        if report.waiting_requests is None or report.read_s is None or before.read_s is None or report.stale:
            return
        if report.changed_s == report.read_s and before.changed_s is not None:
            load = self._load
            self.running_limit.reported(report, load.present_requests, self._speed.pending_ms(load))
            step_began_s = before.changed_s - (report.read_s - before.read_s)  # or later
            waiting, own = report.waiting_requests, self.own.present_requests
            everyones = (report.running_requests or 0) + waiting
            ours = own / max(own, everyones, 1)
            self.prefills.reported(round(waiting * ours), step_began_s - self.rtt_ms / 1e3, report.read_s)
        if self.notify is not None:
            self.notify(self)

    def prefilled(self, tokens: int, attended: int = 0) -> None:
        """So many tokens of one of our prompts were computed here, with so many before them."""
        self.prefilled_tokens += tokens
        self.prefilled_attended_tokens += attended
        newest = _NEWEST if self.usual_prefill_tokens else 1.0
        self.usual_prefill_tokens += newest * (tokens - self.usual_prefill_tokens)
        self.usual_attended_tokens += newest * (attended - self.usual_attended_tokens)

    def not_prefilled(self, tokens: int, attended: int) -> None:
        """Of what counted as computed here, so much was not."""
        self.prefilled_tokens -= tokens
        self.prefilled_attended_tokens -= attended

    def peers_reported(self, load: Load, now_s: float) -> None:
        """What the other sidecars have in flight here; more that waits for prefill than before was sent since."""
        sent_ms = self._speed.pending_ms(load) - self._speed.pending_ms(self.peers)
        if sent_ms > 0:
            self.prefills.takes(sent_ms, now_s)
        self.load = self._load.minus(self.peers).plus(load)
        self.peers = load
        if self.notify is not None:
            self.notify(self)

    def probed(
        self,
        answered: bool,
        now_s: float,
        failures_to_eject: int,
        *,
        asked_s: float | None = None,
        says_so: bool = False,
    ) -> None:
        """A probe that was sent at `asked_s` was answered, or was not by `now_s`.

        `says_so`: the engine's host refuses connections, or it answers a 5xx; it is not only silent.
        """
        was_there = self.health.answers
        self.health.probed(answered, now_s, failures_to_eject)
        if answered:
            self.stream_ends.confirmed(now_s if asked_s is None else asked_s)
        elif says_so and was_there and not self.health.answers:
            self.stream_ends.died(self, now_s)
        self.hops.look(now_s)
        if self.notify is not None:
            self.notify(self)

    @property
    def queues(self) -> bool:
        """The engine lately reported that requests wait: what it refuses now, it refuses because its queue is full."""
        return bool(self.report.waiting_requests) and not self.report.stale

    @property
    def limits_queue(self) -> bool:
        """Whether it refuses requests beyond a number of them, in the stream itself where they stream (SGLang)."""
        return self.identity.max_queued_requests is not None

    @property
    def may_be_full(self) -> bool:
        """Whether its queue is limited, and it has requests to fill it."""
        most = self.identity.max_queued_requests
        return most is not None and (self.queues or self._load.inflight_requests > most)

    @property
    def prefix_capacity_tokens(self) -> int | None:
        """What it can keep of prompts; None: not known."""
        if not (self.report.caches_prefixes and self.identity.caches_prefixes):
            return 0
        return self.report.kv_capacity_tokens

    def take(self, load: Load) -> None:
        """This sidecar sent `load` here."""
        self.own = self.own.plus(load)
        self._load = self._load.plus(load)
        self.revision += 1
        if not self.warm_in.is_over:
            self._bound()
        if load.pending_prefill_tokens < 0 and self.notify is not None:  # a prefill is done
            self.notify(self)

    def give_back(self, load: Load) -> None:
        """What `take` took has ended."""
        self.own = self.own.minus(load)
        self._load = self._load.minus(load)
        self.revision += 1
        if not self.warm_in.is_over:
            self._bound()
        if self.notify is not None:
            self.notify(self)

    def serves(self, now_s: float) -> bool:
        """Whether a request has lately succeeded here."""
        return now_s - self.served_s < SILENCE_S

    def request_served(self) -> None:
        """A request was served here, to its end."""
        if not self.warm_in.is_over:
            self.warm_in.answered()
            self._bound()

    def _bound(self) -> None:
        self.health.withhold(WARMING_IN, active=self.warm_in.is_full(self.own.inflight_requests))

    def refuses(self, code: int, now_s: float) -> bool:
        """Whether an answer with `code` means that the engine's queue is full: nothing is wrong with it.

        That is a 429, and a 503 of an engine that reports waiting requests or lately served others of those in flight.
        """
        serves_others = self._load.inflight_requests > 1 and self.serves(now_s)
        return code == _TOO_MANY_REQUESTS or (code == _UNAVAILABLE and (self.queues or serves_others))

    def refused(self, now_s: float) -> None:
        """It refused a request that is in flight here, as its queue is full."""
        self.refused_s = now_s
        inflight = None if self.report.stale else self._load.present_requests  # only reports can raise a limit again
        self.running_limit.refused(inflight, now_s)

    def request_failed(self, now_s: float, cause: int | None = None) -> None:
        """A request met a refused connection, a time-out or a 5xx here; a 4xx is the client's and says nothing.

        `cause` stands for its prompt, where that may be at fault as well.
        """
        self.failed_one(now_s)
        self.health.failed(now_s, cause)

    def failed_one(self, now_s: float) -> None:
        """A request failed here, by whosever fault."""
        if self.failing_s <= self.served_s:
            self.failing_s = now_s

    def worked_at(self, sent_s: float) -> bool:
        """Whether an engine at which a request has just failed had worked when that was sent, as its first to fail."""
        return self.served_s > -inf and self.failing_s >= sent_s

    def request_answered(self, now_s: float) -> None:
        """A request has its answer from here, with whatever status."""
        self.answered_s, self.passed_over = now_s, 0
        if UNKNOWN_TO_ENVOY in self.health.withheld:
            self.health.withhold(UNKNOWN_TO_ENVOY, active=False)

    def request_passed_over(self, now_s: float) -> bool:
        """A request that chose it was answered elsewhere; whether the gateway seems not to know it at all.

        Then it never answers, and its engine is not at fault. A gateway that has just been sent it may pass it over for
        a moment, until its own first health check.
        """
        if not self.passed_over:
            self._passed_over_s = now_s
        self.passed_over += 1
        passed_over_for_s = now_s - self._passed_over_s
        if self.passed_over >= MOST_PASSED_OVER and passed_over_for_s >= PASSED_OVER_S and self.answered_s == -inf:
            self.health.withhold(UNKNOWN_TO_ENVOY)
        return UNKNOWN_TO_ENVOY in self.health.withheld

    def request_abandoned(self, sent_s: float, expected_s: float, now_s: float) -> None:
        """A client gave up on a request without any answer. If nobody else had one since it was sent, the engine hangs.

        Unless a prompt of so many tokens, and what waited before it, were expected to take about that long. One such
        request says little, as answers may be long and clients impatient; a streak ejects, as any failures do.
        """
        if now_s - sent_s >= max(SILENCE_S, _LATE * expected_s) and self.answered_s < sent_s:
            self.health.failed(now_s)
