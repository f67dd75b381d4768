"""From a whole request to a decision: parse, facts, decide, and the body as the engine must see it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec

from fairlead.cascade.serving.escalation import in_one_piece
from fairlead.cascade.serving.route import Entry
from fairlead.core.budget import MessageBudget
from fairlead.core.facts import RequestFacts, make_facts
from fairlead.core.learning import Learner
from fairlead.core.moves import Move
from fairlead.core.pool import ANY_MODEL
from fairlead.core.prompt import Malformed, parse, split_models
from fairlead.core.router import Decision, Refusal, Router
from fairlead.core.splice import replace_top_level
from fairlead.extproc import headers as h
from fairlead.extproc import refusals
from fairlead.extproc.cascade import RequestCascades
from fairlead.extproc.refusals import HttpAnswer
from fairlead.extproc.reuse import RequestReuse
from fairlead.migration.mover import Mover
from fairlead.telemetry.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Shared:
    """What all requests use."""

    router: Router
    recorder: Recorder
    session_headers: tuple[bytes, ...]
    max_body_bytes: int
    clock_s: Callable[[], float]
    tenant_header: bytes = b""  # none: all requests are of one tenant
    learner: Learner = field(default_factory=Learner)
    budget: MessageBudget = field(default_factory=lambda: MessageBudget(0.0))  # nothing is observed in full
    mover: Mover | None = None  # none: no session is copied
    reuse: RequestReuse | None = None  # of context; None: prompts go as they come
    cascades: RequestCascades | None = None


class Pick(msgspec.Struct, frozen=True, gc=False):
    """A decision, and the request body where the engine must see another than the client sent."""

    decision: Decision
    route: str  # the model or route that was asked for
    body: bytes | None
    request: RequestFacts
    tokens_ratio: float  # that the request's tokens were made with
    reuse: bytes = b""  # what context reuse saved, for the client
    entry: Entry | None = None  # into a cascade, whose judge is to see the answer


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The answer that the client gets instead; `route` only if it is a known one."""

    answer: HttpAnswer
    route: str = ""


def pick(
    shared: Shared,
    path: str,
    headers: h.Headers,
    request_id: bytes,
    body: bytes,
    subset: Collection[str] | None,
    *,
    can_hold: bool = True,
) -> Pick | Refused:
    """Choose the endpoint for a generation request. The load of a `Pick` is taken: its ticket must be released.

    `can_hold`: Envoy can hold the answer back for a judge.
    """
    started_s = shared.clock_s()
    prompt = parse(body, path)
    if isinstance(prompt, Malformed):
        return Refused(refusals.malformed(prompt.message, prompt.param))
    asked = prompt.model or ANY_MODEL
    attempted = headers.get(h.ATTEMPTED_MODELS)
    attempted_models = split_models(attempted.decode(errors="replace")) if attempted else ()
    session_id = _session_id(headers, shared.session_headers)
    tenant = headers.get(shared.tenant_header, b"")
    reuse, shaped = shared.reuse, None
    if reuse is not None and reuse.has_rules:
        shaped = reuse.shape(asked, path, headers, body, prompt, session_id or b"", tenant)
        prompt = prompt if shaped is None else shaped.prompt
    facts = make_facts(prompt, asked, attempted_models, session_id, tenant, shared.learner.ratio)
    others = () if shaped is None else shaped.others
    cascades, cascade, entry = shared.cascades, None, None
    if cascades is not None and cascades.routes:
        cascade = cascades.route_of(asked, headers)
    if cascades is None or cascade is None:
        decision = shared.router.decide(facts, subset, started_s, others)
    else:
        decision, facts, entry = cascades.decide(
            shared.router, cascade, facts, path, body, subset, started_s, others, can_hold=can_hold
        )
    if isinstance(decision, Refusal):
        if decision.reason == "unknown_model":
            return Refused(refusals.unknown_model(asked))
        return Refused(refusals.no_endpoint(), asked)
    sent: bytes | None = body
    saved = b""
    if reuse is not None and shaped is not None:
        facts, sent, saved = reuse.settle(shaped, decision, facts, body, shared.router.index, started_s)
    if sent is not None and (prompt.has_kv_transfer_params or asked not in (decision.model, ANY_MODEL)):
        sent = _rewritten(sent, asked, decision.model, prompt.has_kv_transfer_params)
        if sent is not None and entry is not None and entry.streams:
            sent = in_one_piece(sent)
        if sent is None:
            shared.router.withdraw(decision, started_s)
            return Refused(refusals.malformed("The body has a key twice at its top level; write it once", None), asked)
    shared.router.commit(facts, decision.addresses[0], started_s, binds=not decision.strayed)
    shared.recorder.decided(facts, decision, request_id, shared.clock_s() - started_s)
    changed = None if sent is body else sent
    if shared.mover is not None and isinstance(decision.migration, Move) and not decision.migration.redirects:
        shared.mover.offer(decision.migration, facts, path, body if changed is None else changed)
    return Pick(decision, asked or decision.model, changed, facts, shared.learner.ratio(facts.language), saved, entry)


def _rewritten(body: bytes, asked: str, model: str, has_kv_transfer_params: bool) -> bytes | None:
    """`body` that names the chosen model, and without what only Fairlead may ask of an engine."""
    changed: bytes | None = body
    if asked not in (model, ANY_MODEL):
        changed = replace_top_level(body, "model", msgspec.json.encode(model))
    if changed is not None and has_kv_transfer_params:
        changed = replace_top_level(changed, "kv_transfer_params", b"null")
    return changed


def _session_id(headers: h.Headers, names: tuple[bytes, ...]) -> bytes | None:
    for name in names:
        value = headers.get(name)
        if value:
            return value
    return None
