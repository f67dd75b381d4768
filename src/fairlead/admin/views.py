"""What the admin pages tell of the pool: documents made from the router's and the recorder's state when asked for.

They show no prompt, no session id and no secret. Each is made on the event loop that decides, so none does more than a
few field reads for each endpoint. Unknown is null, which is not 0.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from fairlead import __version__
from fairlead.admin.decisions import Document
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import session_key
from fairlead.core.observation import LEAST_DECODE_TOKENS
from fairlead.core.reported import EngineReport
from fairlead.core.reported_times import UNSAID
from fairlead.discovery import SourceStatus
from fairlead.extproc.recorder import EndpointCounts, Recorder
from fairlead.extproc.services import Services
from fairlead.tuning.online import OnlineTuner

_CLIENT_LEFT: Final = 499
_SHOWN_ADAPTERS: Final = 32  # of an endpoint
_NONE: Final = EndpointCounts()


def config(services: Services) -> Document:
    """The configuration in force, without secrets."""
    shown: Document = services.config.model_dump(mode="json")
    return shown


def status(services: Services) -> Document:
    """The sidecar as a whole; counts are since its start."""
    recorder, router = services.recorder, services.router
    recorder.settle()
    policy = router.policy
    return {
        "version": __version__,
        "at": time.time(),
        "started": services.started,
        "ready": services.is_ready,
        "state": services.state,
        "policy": {
            "name": services.config.policy.name,
            "parameters": msgspec.structs.asdict(policy) if isinstance(policy, msgspec.Struct) else {},
        },
        "features": {
            "admission": services.config.admission is not None,
            "rates": services.rates.is_on,
            "tuner": isinstance(router.tuner, OnlineTuner),
            "cascades": bool(services.config.cascades()),
            "migration": services.config.migration is not None,
            "actions": services.config.listen.admin_token_file is not None,
        },
        "routes": router.pool.routes,
        "models": router.pool.models,
        "requests": _requests(recorder),
        "decisions": recorder.decision_seconds.count,
        "decision_seconds": recorder.decision_seconds.sum,
        "prompt_tokens": sum(recorder.prompt_tokens.values()),
        "prefix_hit_tokens": sum(recorder.prefix_hit_tokens.values()),
        "sessions": router.sessions.count,
        "discovery": [_source(each) for each in services.discovery.statuses],
        "envoys": services.envoys.statistics()._asdict(),
        "running_streams": recorder.running_streams,
        "waiting_requests": services.admission.queue.requests,
        "failures": {"policy": router.policy_failures, "stream": recorder.stream_failures},
    }


def _source(source: SourceStatus) -> Document:
    return {
        "source": source.name,
        "endpoints": None if source.endpoints is None else len(source.endpoints),
        "age_s": source.age_s(),
        "error": source.error,
    }


def endpoints(services: Services) -> Iterator[Document]:
    """Every endpoint as the router sees it when it is asked for."""
    router, now_s = services.router, services.clock_s()
    services.recorder.settle()
    sessions = router.sessions.by_endpoint()
    ended: dict[str, Counter[str]] = {}
    for (_, _, address, code), count in services.recorder.requests.items():
        ended.setdefault(address, Counter())[_outcome(code)] += count
    for endpoint in router.pool.endpoints:
        here = endpoint.address
        yield _endpoint(services, endpoint, sessions.get(here, 0), ended.get(here, Counter()), now_s)


def session(services: Services, session_id: str, tenant: str) -> Document | None:
    """Where a session lives, or None if this sidecar does not know it. Asking does not count as a use of it."""
    table, pool = services.router.sessions, services.router.pool
    facts = table.about(session_key(session_id.encode(), tenant.encode()), services.clock_s())
    if facts is None:
        return None
    endpoint = pool.by_address.get(facts.address)
    return {
        "endpoint": facts.address,
        "model": endpoint.model if endpoint is not None else None,
        "healthy": endpoint.health.healthy if endpoint is not None else False,
        "bound_for_s": facts.bound_for_s,
        "idle_s": facts.idle_s,
        "expires_in_s": max(0, table.ttl_s - facts.idle_s),
    }


def no_such_session(services: Services, tenant: str) -> str:
    """The sentence for a session that is not known."""
    tenant_header = services.config.tenants.header
    headers = ", ".join(services.config.sessions.headers)
    idle = f"it was idle for more than {services.router.sessions.ttl_s} s"
    sentence = f"this sidecar knows no such session: no request named it, {idle}, or its endpoint left the pool."
    if headers:
        sentence += f" The first of these headers that a request has names its session: {headers}."
    if tenant_header and not tenant:
        sentence += f" Sessions are kept apart by tenant: add ?tenant= and the value of {tenant_header}."
    return sentence


def _endpoint(services: Services, e: Endpoint, sessions: int, ended: Counter[str], now_s: float) -> Document:
    counts = services.recorder.by_endpoint.get(e.address, _NONE)
    health = e.health
    blocks = services.router.indexed_blocks(e)
    return {
        "address": e.address,
        "model": e.model,
        "region": e.spec.region,
        "engine": e.spec.engine,
        "role": e.spec.role,
        "version": e.identity.version,
        "max_model_len": e.max_model_len,
        "adapters": e.identity.adapters[:_SHOWN_ADAPTERS],
        "adapter_count": len(e.identity.adapters),
        "adapter_slots": e.adapters.slots,
        "adapters_loaded": e.adapters.loaded[-_SHOWN_ADAPTERS:],
        "adapter_load": _adapter_load(services, e),
        "healthy": e.health.healthy,
        "withheld": sorted(health.withheld),  # why it gets nothing new, however well it is
        "draining": e.address in services.router.planner.draining,
        "answers_probes": health.answers,
        "takes_prompts": not e.hops.is_out,  # of others; what it has computed lately came to something
        "ejections": health.ejections,
        "returns": health.returns,
        "restarts": e.generation,
        "rtt_ms": e.rtt_ms or None,  # a measured one is never 0
        "inflight_requests": e.own.inflight_requests,
        "decoding_requests": e.own.decoding_requests,
        "awaited_requests": e.own.awaited_requests,  # another endpoint still computes their prompts
        "inflight_prompt_tokens": e.own.inflight_prompt_tokens,
        "pending_prefill_tokens": e.own.pending_prefill_tokens,
        "peers": {  # sent by the sidecars that share a store with this one
            "inflight_requests": e.peers.inflight_requests,
            "decoding_requests": e.peers.decoding_requests,
            "awaited_requests": e.peers.awaited_requests,
            "inflight_prompt_tokens": e.peers.inflight_prompt_tokens,
            "pending_prefill_tokens": e.peers.pending_prefill_tokens,
        },
        "pending_prefill_ms": e.speed.pending_ms(e.load),  # everyone's, one after the other
        "prefill": _constant(services, e, "prefill", now_s),
        "prefill_growth_per_1k": e.speed.prefill_growth * 1e3,  # by each 1,000 tokens of the prompt before a token
        "decode": _constant(services, e, "decode", now_s),
        "batch_slowdown": e.speed.batch_slowdown,
        "answer_tokens": e.speed.answer_tokens,
        "fixed_ms": e.speed.fixed_ms,  # of each request there, whatever its length
        "indexed_blocks": blocks,
        "cached_tokens": services.router.index.tokens(e.address) if blocks else 0,
        "sessions": sessions,
        "decisions": counts.decisions,
        "prompt_tokens": counts.prompt_tokens,
        "prefix_hit_tokens": counts.prefix_hit_tokens,
        "requests": ended,
        "reported": _reported(e.report, now_s),
    }


def _reported(report: EngineReport, now_s: float) -> Document:
    return {
        "running_requests": report.running_requests,
        "waiting_requests": report.waiting_requests,
        "kv_usage": report.kv_usage,
        "kv_capacity_tokens": report.kv_capacity_tokens,
        "prefix_queried_tokens": report.prefix_queried_tokens,
        "prefix_hit_tokens": report.prefix_hit_tokens,
        "read_ago_s": None if report.read_s is None else max(0.0, now_s - report.read_s),
        "stale": report.stale,
    }


def _constant(services: Services, e: Endpoint, of: Literal["prefill", "decode"], now_s: float) -> Document:
    """Milliseconds per token in force, where they come from, out of how many answers, and since when."""
    learner = services.learner
    model, engine = learner.models.get(e.model), learner.engines.get((e.address, e.model))
    is_configured = e.spec.prefill_configured if of == "prefill" else e.spec.decode_configured
    said = getattr(learner.reported.get(e.model, UNSAID), f"{of}_ms") is not None
    learned, samples, own, factor = False, 0, 0, 1.0
    if model is not None:
        learned = model.knows_prefill if of == "prefill" else model.knows_decode
        samples = sum(
            (each.work.own_tokens if of == "prefill" else each.work.steps) > LEAST_DECODE_TOKENS
            for each in model.samples
        )
    if engine is not None:
        here = engine.prefill if of == "prefill" else engine.decode
        own, factor = len(here.samples), here.value
    since_s = model.since_s if model is not None else None
    return {
        "ms_per_token": e.speed.prefill_ms_per_token if of == "prefill" else e.speed.decode_ms_per_token,
        "source": "learned" if learned else "configured" if is_configured else "reported" if said else "default",
        "samples": samples,  # of the model, on any of its endpoints
        "endpoint_samples": own,
        "endpoint_factor": factor,  # to what is usual of the model, and configured of this endpoint
        "oldest_sample_s": None if since_s is None else max(0.0, now_s - since_s),
        "learned": learned,
    }


def _adapter_load(services: Services, e: Endpoint) -> Document:
    """Milliseconds to load an adapter, and out of how many loads."""
    learner = services.learner
    model, engine = learner.models.get(e.model), learner.engines.get((e.address, e.model))
    return {
        "ms": e.speed.adapter_load_ms,
        "source": "learned" if model is not None and model.adapter_load_ms.learned else "default",
        "samples": 0 if model is None else model.adapter_load_ms.samples,  # of the model, on any of its endpoints
        "endpoint_samples": 0 if engine is None else engine.adapter_load_ms.samples,
    }


def _requests(recorder: Recorder) -> Counter[str]:
    by_outcome: Counter[str] = Counter()
    for (_, model, _, code), count in recorder.requests.items():
        by_outcome["refused" if not model else _outcome(code)] += count
    return by_outcome


def _outcome(code: int) -> str:
    if code == _CLIENT_LEFT:
        return "client_left"
    return "ok" if code < 400 else "client_error" if code < 500 else "server_error"
