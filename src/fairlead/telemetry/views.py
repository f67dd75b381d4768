"""What the admin pages tell of the pool: documents made from the router's and the recorder's state when asked for.

They show no prompt, no session id and no secret. Each is made on the event loop that decides, so none does more than a
few field reads for each endpoint. Unknown is null, which is not 0.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fairlead import __version__
from fairlead.core.facts import session_key
from fairlead.core.learning import LEAST_SAMPLES, Learner
from fairlead.core.lengths import TOKENS_PER_ASCII_CHARACTER
from fairlead.core.pool import Endpoint
from fairlead.core.prefix import BLOCK_BYTES
from fairlead.core.reported import EngineReport
from fairlead.core.router import Router
from fairlead.telemetry.recorder import EndpointCounts, Recorder

_TOKENS_PER_BLOCK: Final = BLOCK_BYTES * TOKENS_PER_ASCII_CHARACTER  # as of English; the index counts bytes
_CLIENT_LEFT: Final = 499
_NONE: Final = EndpointCounts()

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sources:
    """All that the admin pages read. `clock_s` is the request path's, `config` what is in force, without secrets."""

    router: Router
    recorder: Recorder
    learner: Learner
    ready: Callable[[], bool]
    config: Callable[[], Document]
    policy_name: Callable[[], str]
    running_streams: Callable[[], int]
    clock_s: Callable[[], float]
    started: float = field(default_factory=time.time)  # Unix time, seconds


def status(sources: Sources) -> Document:
    """The sidecar as a whole; counts are since its start."""
    recorder, router = sources.recorder, sources.router
    recorder.settle()
    policy = router.policy
    return {
        "version": __version__,
        "at": time.time(),
        "started": sources.started,
        "ready": sources.ready(),
        "policy": {
            "name": sources.policy_name(),
            "parameters": msgspec.structs.asdict(policy) if isinstance(policy, msgspec.Struct) else {},
        },
        "routes": router.pool.routes,
        "models": router.pool.models,
        "requests": _requests(recorder),
        "decisions": recorder.decision_seconds.count,
        "decision_seconds": recorder.decision_seconds.sum,
        "prompt_tokens": sum(recorder.prompt_tokens.values()),
        "prefix_hit_tokens": sum(recorder.prefix_hit_tokens.values()),
        "sessions": router.sessions.count,
        "running_streams": sources.running_streams(),
        "failures": {"policy": router.policy_failures, "stream": recorder.stream_failures},
    }


def endpoints(sources: Sources) -> Iterator[Document]:
    """Every endpoint as the router sees it when it is asked for."""
    router, now_s = sources.router, sources.clock_s()
    sources.recorder.settle()
    sessions = router.sessions.by_host()
    ended: dict[str, Counter[str]] = {}
    for (_, _, address, code), count in sources.recorder.requests.items():
        ended.setdefault(address, Counter())[_outcome(code)] += count
    for endpoint in router.pool.endpoints:
        here = endpoint.address
        yield _endpoint(sources, endpoint, sessions.get(here, 0), ended.get(here, Counter()), now_s)


def session(sources: Sources, session_id: str, tenant: str) -> Document | None:
    """Where a session lives, or None if this sidecar does not know it. Asking does not count as a use of it."""
    table, pool = sources.router.sessions, sources.router.pool
    facts = table.about(session_key(session_id.encode(), tenant.encode()), sources.clock_s())
    if facts is None:
        return None
    endpoint = pool.by_address.get(facts.address)
    return {
        "endpoint": facts.address,
        "model": endpoint.model if endpoint is not None else None,
        "healthy": endpoint.healthy if endpoint is not None else False,
        "bound_for_s": facts.bound_for_s,
        "idle_s": facts.idle_s,
        "expires_in_s": max(0, table.ttl_s - facts.idle_s),
    }


def no_such_session(sources: Sources, tenant: str) -> str:
    """The sentence for a session that is not known."""
    config = sources.config()
    tenant_header = config.get("tenants", {}).get("header")
    headers = ", ".join(config.get("sessions", {}).get("headers", ()))
    reasons = f"it never came, was idle for more than {sources.router.sessions.ttl_s} s, or its endpoint left the pool"
    sentence = f"this sidecar knows no such session: {reasons}."
    if headers:
        sentence += f" The first of these headers that a request has names its session: {headers}."
    if tenant_header and not tenant:
        sentence += f" Sessions are kept apart by tenant: add ?tenant= and the value of {tenant_header}."
    return sentence


def _endpoint(sources: Sources, e: Endpoint, sessions: int, ended: Counter[str], now_s: float) -> Document:
    counts = sources.recorder.by_endpoint.get(e.address, _NONE)
    health = e.health
    times = sources.learner.models.get(e.model)
    # The index forgets a restarted engine at the next decision, not at its restart.
    blocks = sources.router.index.blocks(e.address) if e.generation == e.indexed_generation else 0
    return {
        "address": e.address,
        "model": e.model,
        "region": e.region,
        "engine": e.engine,
        "version": e.identity.version,
        "max_model_len": e.max_model_len,
        "healthy": e.healthy,
        "draining": e.address in sources.router.planner.draining,
        "answers_probes": health.answers,
        "ejections": health.ejections,
        "returns": health.returns,
        "restarts": e.generation,
        "rtt_ms": e.rtt_ms or None,  # a measured one is never 0
        "inflight_requests": e.inflight_requests,
        "decoding_requests": e.decoding_requests,
        "inflight_prompt_tokens": e.inflight_prompt_tokens,
        "pending_prefill_tokens": e.pending_prefill_tokens,
        "others": {  # sent by the sidecars that share a store with this one
            "inflight_requests": e.others_inflight_requests,
            "decoding_requests": e.others_decoding_requests,
            "inflight_prompt_tokens": e.others_inflight_prompt_tokens,
            "pending_prefill_tokens": e.others_pending_prefill_tokens,
        },
        "prefill": _learned(times.prefill_ms_per_token.samples if times else 0, e.prefill_ms_per_token),
        "decode": _learned(times.decode.samples if times else 0, e.decode_ms_per_token),
        "batch_slowdown": e.batch_slowdown,
        "answer_tokens": e.answer_tokens,
        "indexed_blocks": blocks,
        "cached_tokens": int(blocks * _TOKENS_PER_BLOCK),
        "sessions": sessions,
        "decisions": counts.decisions,
        "prompt_tokens": counts.prompt_tokens,
        "prefix_hit_tokens": counts.prefix_hit_tokens,
        "requests": ended,
        "reported": _reported(e.reported, now_s),
    }


def _reported(said: EngineReport, now_s: float) -> Document:
    return {
        "running_requests": said.running_requests,
        "waiting_requests": said.waiting_requests,
        "kv_usage": said.kv_usage,
        "kv_capacity_tokens": said.kv_capacity_tokens,
        "prefix_queried_tokens": said.prefix_queried_tokens,
        "prefix_hit_tokens": said.prefix_hit_tokens,
        "read_ago_s": None if said.read_s is None else max(0.0, now_s - said.read_s),
        "stale": said.stale,
    }


def _learned(samples: int, in_force: float) -> Document:
    """Milliseconds per token in force, and whether answers taught them or the configuration says so."""
    return {"ms_per_token": in_force, "samples": samples, "learned": samples >= LEAST_SAMPLES}


def _requests(recorder: Recorder) -> Counter[str]:
    by_outcome: Counter[str] = Counter()
    for (_, model, _, code), count in recorder.requests.items():
        by_outcome["refused" if not model else _outcome(code)] += count
    return by_outcome


def _outcome(code: int) -> str:
    if code == _CLIENT_LEFT:
        return "client_left"
    return "ok" if code < 400 else "client_error" if code < 500 else "server_error"
