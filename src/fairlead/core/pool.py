"""The pool as the router knows it: endpoints with what they serve, how they are, and what was sent to them.

An `Endpoint` is the one mutable thing in the core. The ledger writes its load, the observers in `engines` its health;
policies never see it, only the `Candidate` made of it for one request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import msgspec

from fairlead.core.capability import NEUTRAL, Capability
from fairlead.core.decode_time import USUAL_SLOWDOWN
from fairlead.core.facts import RequestFacts
from fairlead.core.health import SILENCE_S, Health
from fairlead.core.peers import Load
from fairlead.core.prefills import PrefillEstimate
from fairlead.core.reported import UNIDENTIFIED, UNKNOWN, EngineIdentity, EngineReport

USUAL_ANSWER_TOKENS: Final = 256.0  # until answers were observed


@dataclass(slots=True, eq=False)
class Endpoint:
    """One engine at one address. Constants are the configuration's until answers teach better ones (`core.learning`);
    counts are the router's own, unless others'.
    """

    address: str  # host:port, the host an IP address
    model: str
    prefill_ms_per_token: float = 0.1
    decode_ms_per_token: float = 20.0  # alone on the engine
    max_model_len: int | None = None
    capability: Capability = NEUTRAL
    region: str = ""
    engine: str = "vllm"
    kv_connector: str = ""  # by which its KV can go elsewhere: mooncake, nixl, or a store that it shares; empty: none

    healthy: bool = True  # all that the request path reads of `health`
    rtt_ms: float = 0.0
    reported: EngineReport = UNKNOWN
    identity: EngineIdentity = UNIDENTIFIED
    answered_s: float = -inf  # when a request last had an answer here, or the end of one
    generation: int = 0  # grows when the engine restarts: what it had cached is gone
    health: Health = field(default_factory=Health)
    configured_max_model_len: int | None = field(init=False)
    batch_slowdown: float = USUAL_SLOWDOWN  # of decoding, by each other request there
    answer_tokens: float = USUAL_ANSWER_TOKENS

    inflight_requests: int = 0
    inflight_prompt_tokens: int = 0
    pending_prefill_tokens: int = 0  # not cached, and no first token seen yet
    prefilled_tokens: int = 0  # of all that were pending, ever
    decoding_requests: int = 0  # past their first token
    others_inflight_requests: int = 0  # sent by the sidecars that share a store with this one
    others_inflight_prompt_tokens: int = 0
    others_pending_prefill_tokens: int = 0
    others_decoding_requests: int = 0
    prefills: PrefillEstimate = field(default_factory=PrefillEstimate)
    indexed_blocks: int = 0  # kept by the prefix index
    indexed_generation: int = 0  # the life of the engine that they are of
    last_chosen: int = 0  # the number of the decision that chose it last

    def __post_init__(self) -> None:
        self.configured_max_model_len = self.max_model_len

    def take_constants_of(self, other: Endpoint) -> None:
        """Become `other` as configured, and keep what is known of health and load."""
        self.model, self.capability = other.model, other.capability
        self.prefill_ms_per_token, self.decode_ms_per_token = other.prefill_ms_per_token, other.decode_ms_per_token
        self.batch_slowdown, self.answer_tokens = other.batch_slowdown, other.answer_tokens
        self.configured_max_model_len, self.region, self.engine = other.max_model_len, other.region, other.engine
        self.kv_connector = other.kv_connector
        self.identified(self.identity)

    def identified(self, identity: EngineIdentity) -> None:
        """The engine said what it is; the shorter of its context length and the configured one counts."""
        self.identity = identity
        lengths = [n for n in (self.configured_max_model_len, identity.max_model_len) if n is not None]
        self.max_model_len = min(lengths, default=None)

    def told(self, report: EngineReport) -> None:
        """The engine said how it is. A number that moves shows that it has stepped since its page was read before."""
        before, self.reported = self.reported, report
        if report.waiting_requests is None or report.read_s is None or before.read_s is None or report.stale:
            return
        if report.changed_s == report.read_s and before.changed_s is not None:
            step_began_s = before.changed_s - (report.read_s - before.read_s)  # or later
            waiting = report.waiting_requests
            everyones = (report.running_requests or 0) + waiting
            ours = self.inflight_requests / max(self.inflight_requests, everyones, 1)
            self.prefills.told(round(waiting * ours), step_began_s - self.rtt_ms / 1e3, report.read_s)

    def told_of_others(self, load: Load) -> None:
        """What the other sidecars have in flight here."""
        self.others_inflight_requests = load.inflight_requests
        self.others_inflight_prompt_tokens = load.inflight_prompt_tokens
        self.others_pending_prefill_tokens = load.pending_prefill_tokens
        self.others_decoding_requests = load.decoding_requests

    def probed(self, answered: bool, now_s: float, failures_to_eject: int) -> None:
        """A probe beside the request path was answered or was not."""
        self.healthy = self.health.probed(answered, now_s, failures_to_eject)

    def request_failed(self, now_s: float) -> None:
        """A request met a refused connection, a time-out or a 5xx here; a 4xx is the client's and says nothing."""
        self.healthy = self.health.failed(now_s)

    def request_abandoned(self, sent_s: float, now_s: float) -> None:
        """A client gave up on a request without any answer. If nobody else had one since it was sent, the engine hangs.

        One such request says little, as answers may be long and clients impatient; a streak ejects, as any failures do.
        """
        if now_s - sent_s >= SILENCE_S and self.answered_s < sent_s:
            self.request_failed(now_s)

    def request_succeeded(self) -> None:
        """A request was served here, with a status below 400."""
        self.healthy = self.health.succeeded()


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An endpoint as it stands for one request, with all that a policy may use."""

    address: str
    model: str
    inflight_requests: int
    inflight_prompt_tokens: int
    pending_prefill_tokens: int
    cached_tokens: int  # of this request's prompt, at this endpoint, as far as the router knows
    uncached_tokens: int
    rtt_ms: float
    prefill_ms_per_token: float
    decode_ms_per_token: float
    success_probability: float
    attempts: int  # how often this model has already answered this request wrongly
    last_chosen: int
    is_host: bool = False  # of the request's session
    decoding_requests: int = 0
    running_requests: int = 0  # as the engine reports; 0 where it does not
    waiting_requests: int = 0
    kv_usage: float = 0.0
    used_tokens: int = 0  # in the KV cache, as the engine reports
    indexed_blocks: int = 0  # of all prompts, that the prefix index holds for this endpoint
    least_inflight_requests: int = 0  # at any candidate of this request
    output_tokens: float = USUAL_ANSWER_TOKENS  # expected of the answer here
    batch_slowdown: float = USUAL_SLOWDOWN


ANY_MODEL = ""  # asked by APIs that name no model: SGLang's /generate


class Pool:
    """Endpoints by the names that requests ask for. Made once from a configuration; only its endpoints change."""

    def __init__(self, endpoints: Sequence[Endpoint], routes: Mapping[str, Sequence[str]]) -> None:
        self.endpoints = tuple(endpoints)
        self.by_address = {endpoint.address: endpoint for endpoint in endpoints}
        self.routes = {route: tuple(models) for route, models in routes.items()}
        self.models = tuple(dict.fromkeys(endpoint.model for endpoint in endpoints))
        asked = {model: (model,) for model in self.models} | self.routes
        self._serving = {name: tuple(e for e in endpoints if e.model in models) for name, models in asked.items()}
        self._serving[ANY_MODEL] = tuple(e for e in endpoints if e.engine == "sglang") or self.endpoints

    def knows(self, name: str) -> bool:
        """Whether `name` is a served model or a route."""
        return name in self._serving

    def available(self, name: str | None, subset: Collection[str] | None = None) -> list[Endpoint]:
        """Healthy endpoints that serve `name` (None: all endpoints), out of `subset` where the gateway gave one.

        If there are none, those that only requests found at fault: they may have been unlucky, and refusing is worse.
        """
        serving: Iterable[Endpoint] = self.endpoints if name is None else self._serving.get(name, ())
        if subset is not None:
            serving = [endpoint for endpoint in serving if endpoint.address in subset]
        healthy = [endpoint for endpoint in serving if endpoint.healthy]
        return healthy or [endpoint for endpoint in serving if endpoint.health.fails_requests_only]


def fitting(endpoints: Sequence[Endpoint], request: RequestFacts) -> Sequence[Endpoint]:
    """Those whose context length fits the prompt; all of them if none seems to, as the estimate may be wrong."""
    tokens = request.tokens
    return [e for e in endpoints if e.max_model_len is None or tokens <= e.max_model_len] or endpoints


def candidates(
    endpoints: Sequence[Endpoint], request: RequestFacts, cached_tokens: Mapping[str, int], host: str | None = None
) -> list[Candidate]:
    """One candidate for each endpoint, in the same order; `cached_tokens` by address, absent is 0."""
    language, bucket, tokens, attempted = request.language, request.bucket, request.tokens, request.attempted
    limit = request.max_output_tokens
    least = min([e.inflight_requests + e.others_inflight_requests for e in endpoints], default=0)
    options = []
    capability, success_probability = None, 1.0
    for e in endpoints:
        cached = min(cached_tokens.get(e.address, 0), tokens) if cached_tokens else 0
        said, answer_tokens = e.reported, e.answer_tokens
        if e.capability is not capability:  # those of one model share it
            capability = e.capability
            success_probability = capability.success_probability(language, bucket, tokens)
        kv_usage = said.kv_usage or 0.0
        options.append(
            Candidate(
                e.address,
                e.model,
                e.inflight_requests + e.others_inflight_requests,
                e.inflight_prompt_tokens + e.others_inflight_prompt_tokens,
                e.pending_prefill_tokens + e.others_pending_prefill_tokens,
                cached,
                tokens - cached,
                e.rtt_ms,
                e.prefill_ms_per_token,
                e.decode_ms_per_token,
                success_probability,
                attempted.count(e.model) if attempted else 0,
                e.last_chosen,
                e.address == host,
                e.decoding_requests + e.others_decoding_requests,
                said.running_requests or 0,
                said.waiting_requests or 0,
                kv_usage,
                int(kv_usage * said.kv_capacity_tokens) if kv_usage and said.kv_capacity_tokens else 0,
                e.indexed_blocks,
                least,
                answer_tokens if limit is None or answer_tokens < limit else limit,
                e.batch_slowdown,
            )
        )
    return options
