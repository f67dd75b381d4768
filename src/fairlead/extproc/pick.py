"""From a whole request to a decision: parse, facts, decide, and the body as the engine must get it."""

from __future__ import annotations

from collections.abc import Mapping
from random import random
from typing import Final

import msgspec

from fairlead.admission.admission import retry_after_s
from fairlead.api import headers as names
from fairlead.api import refusals
from fairlead.api.body_limits import INLINE
from fairlead.api.cache_salt import SALTED_PATHS, salt_of
from fairlead.api.edits import addition, edits
from fairlead.api.json_body import split_models
from fairlead.api.media_names import names_in
from fairlead.api.media_sources import first_refused
from fairlead.api.one_token import SPLIT_PATHS, spans_to_split
from fairlead.api.paths import BINDING_PATHS, MODEL_OPTIONAL_PATHS
from fairlead.api.prompt import TOO_MANY, Malformed, Prompt, parse
from fairlead.api.refusals import HttpAnswer
from fairlead.api.spans import MOST_SPANS, Span, object_spans
from fairlead.cascade.route import Entry
from fairlead.core.endpoint import BY_PROXY
from fairlead.core.facts import RequestFacts, make_facts, unread_facts
from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Refusal
from fairlead.core.pool import ANY_MODEL
from fairlead.core.trace import Part
from fairlead.extproc.body import Body, LongBody, ending, spliced_body, whole
from fairlead.extproc.cascade import Admitted
from fairlead.extproc.reading import INLINE_BYTES, Question, Read, read_whole
from fairlead.extproc.request import Asked, HttpRequest
from fairlead.extproc.services import Services
from fairlead.migration.mover import MOST_BODY_BYTES

# Of JSON, outside of its prompt's text. It may be keys of a few bytes, each a microsecond wherever spans are looked
# for; to count them would cost every body more than its parse.
_MOST_AROUND_BYTES: Final = 64 * 1024
_LEAST_LOOKED_AT_BYTES: Final = 32 * 1024  # what is shorter has at most 11,000 objects
_WINDOWS, _WINDOW_BYTES, _MOST_OF_WINDOW = 8, 256, 32  # text and JSON of use have fewer


class Pick(msgspec.Struct, frozen=True, gc=False):
    """A decision, and the request body where the engine must get another one than the client sent."""

    in_flight: InFlight
    route: str  # the model or route that was asked for
    body: Body | None
    reuse: bytes = b""  # what context reuse saved, for the client
    entry: Entry | None = None  # into a cascade, whose judge is to see the answer
    renamed: str = ""  # the name that the client asked for, where the engine gets another
    unsent: RequestFacts | None = None  # as it will be sent, once another endpoint has computed its prompt
    streams: bool = False


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A request that was read, before it has an endpoint."""

    request: HttpRequest
    read: Read
    asked: Asked
    facts: RequestFacts
    started_s: float
    read_s: float  # that reading took before: of a long body, in another process


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The answer that the client gets instead; `route` only if it is a known one."""

    answer: HttpAnswer
    route: str = ""


def read_inline(request: HttpRequest) -> Read | Malformed | None:
    """What a body asks for; None for one so long that reading it here would keep other requests waiting."""
    body = request.body
    if isinstance(body, LongBody) or len(body) > INLINE_BYTES or _is_of_tiny_objects(body):
        return None
    prompt = parse(body, request.path, request.headers.get(b"content-type", b""), INLINE)
    if isinstance(prompt, Malformed):
        return None if prompt is TOO_MANY else prompt
    if prompt.model_span is None and len(body) - len(prompt.text) > _MOST_AROUND_BYTES:
        return None
    return Read(prompt)


def _is_of_tiny_objects(body: bytes) -> bool:
    """Whether it may be, as 80,000 messages `{}` are, which take 8 ms to parse.

    To count them would cost every body more than its parse. A few short windows are looked at, where no client can
    know; what these miss fills little of the body, and costs as little.
    """
    size = len(body)
    if size < _LEAST_LOOKED_AT_BYTES:
        return False
    for _ in range(_WINDOWS):
        start = int(random() * size)
        if body.count(b"{", start, start + _WINDOW_BYTES) > _MOST_OF_WINDOW:
            return True
    return False


def read_here(services: Services, request: HttpRequest) -> Read | Malformed:
    """A long body, here and now."""
    return read_whole(whole(request.body), question(services, request))


def question(services: Services, request: HttpRequest) -> Question:
    """What goes with a body that is read elsewhere."""
    headers = request.headers
    return Question(request.path, headers.get(b"content-type", b""), headers.get(services.tenant_header, b""))


def pick(services: Services, request: HttpRequest) -> Pick | Refused:
    """Read the body and choose an endpoint, here and now. The load of a `Pick` is taken: its `in_flight` must end."""
    whole_s = services.clock_s()
    read = read_inline(request)
    prepared = prepare(services, request, read_here(services, request) if read is None else read, whole_s)
    return prepared if isinstance(prepared, Refused) else place(services, prepared)


def prepare(services: Services, request: HttpRequest, read: Read | Malformed, whole_s: float) -> Prepared | Refused:
    """All that can be known of a request before it has an endpoint; its body was whole at `whole_s`."""
    if isinstance(read, Malformed):
        return Refused(refusals.malformed(read.message, read.param))
    if sources := read.prompt.media_sources:
        domain = first_refused(sources, services.config.gateway.allowed_media_domains)
        if domain is not None:
            return Refused(refusals.media_source(domain))
    started_s = services.clock_s()
    asked = _asked(services, request, read)
    if asked is None:
        named = read.prompt.model or ANY_MODEL
        return Refused(_UNEDITABLE, named if services.router.pool.knows(named) else "")
    return Prepared(request, read, asked, _facts(services, request, read, asked), started_s, started_s - whole_s)


def place(services: Services, prepared: Prepared, waited_s: float = 0.0) -> Pick | Refused:
    """Choose the endpoint, and take its load, for a request that has waited for so long."""
    asked, started_s = prepared.asked, prepared.started_s + waited_s
    slo = prepared.facts.slo
    if slo is not None and waited_s:
        facts = msgspec.structs.replace(prepared.facts, slo=slo.after(waited_s * 1e3))
        prepared = msgspec.structs.replace(prepared, facts=facts)
    admitted = _admitted(services, prepared, started_s)
    if isinstance(admitted, Refusal):
        if admitted.reason == "unknown_model":
            return Refused(refusals.unknown_model(asked.prompt.model or asked.name))
        if admitted.reason == "slo_unmet":
            return Refused(refusals.too_late(retry_after_s(admitted.late_ms)), asked.route)
        if admitted.reason == "kills_engines":
            return Refused(refusals.kills_engines(), asked.route)
        one_server = admitted.reason == "one_server"
        return Refused(refusals.one_server() if one_server else refusals.no_endpoint(), asked.route)
    try:
        return _sent(services, prepared, admitted, started_s)
    except BaseException:
        admitted.in_flight.withdraw(started_s)
        raise


def _asked(services: Services, request: HttpRequest, read: Read) -> Asked | None:
    """None where the body would have to change and cannot."""
    prompt = read.prompt
    written = prompt.model or ANY_MODEL
    name, route = asked_of(services, written, request)
    if prompt.adapter and (adapter := services.router.pool.adapter_of(name, prompt.adapter)):
        if name == written and adapter != prompt.adapter:  # as SGLang reads the two
            written = adapter
        name, route = adapter, adapter if route == name else route
        prompt = msgspec.structs.replace(prompt, adapter="")
    salt = _salt(services, request, prompt) if services.separates_caches else b""
    spans: Mapping[str, Span] | None = None
    if prompt.model_span is not None:
        spans = {"model": prompt.model_span}
    elif (
        prompt.reserved
        or prompt.media_names
        or name != written
        or name in services.router.pool.routes
        or (salt and prompt.cache_salt)
    ):
        spans = object_spans(whole(request.body)) if read.measured is None else read.spans
        if spans is None:
            return None
    has_adapter = prompt.adapter or services.router.pool.may_be_adapter(name)
    if not services.reuse.has_rules or read.measured is not None or has_adapter or prompt.is_told:
        return Asked(name, route, prompt, spans, written=written, salt=salt)
    session_id, tenant = _session_id(services, request) or b"", request.headers.get(services.tenant_header, b"")
    began_s = services.clock_s()
    shaped = services.reuse.shape(route, request.path, request.headers, whole(request.body), prompt, session_id, tenant)
    if shaped is not None and request.trace is not None:
        request.trace.add(
            Part("fairlead.reuse", began_s, services.clock_s(), {"fairlead.forms": len(shaped.plan.forms)})
        )
    return Asked(name, route, prompt if shaped is None else shaped.prompt, spans, shaped, written, salt)


def _salt(services: Services, request: HttpRequest, prompt: Prompt) -> bytes:
    """See `api.cache_salt`; empty for a body that is no JSON object, and, without a client's own, for what caches
    nothing.
    """
    if not prompt.digest or not (prompt.cache_salt or request.path in SALTED_PATHS):
        return b""
    return salt_of(request.headers.get(services.tenant_header, b""), prompt.cache_salt)


def asked_of(services: Services, written: str, request: HttpRequest) -> tuple[str, str]:
    """The model or route that a request goes to, and the name under which it counts; see `Asked`."""
    rewrites, headers = services.rewrites, request.headers
    stated = headers.get(names.MODEL_REWRITE[0]) or headers.get(names.MODEL_REWRITE[1])
    if not (rewrites.are_any or stated) or services.cascades.is_inner(headers):
        return written, written
    pool = services.router.pool
    name = rewrites.model(written, pool, _session_id(services, request) or b"", services.rng)
    if stated and name == written != ANY_MODEL and services.config.believes_gateway:  # rewrites of the pool go first
        name = stated.decode(errors="replace")
    return name, written if pool.knows(written) else name


def _facts(services: Services, request: HttpRequest, read: Read, asked: Asked) -> RequestFacts:
    headers = request.headers
    if not asked.name and not asked.prompt.text and request.path not in MODEL_OPTIONAL_PATHS:
        return unread_facts(None)
    attempted = headers.get(names.ATTEMPTED_MODELS)
    facts = make_facts(
        asked.prompt,
        asked.name,
        split_models(attempted.decode(errors="replace")) if attempted else (),
        _session_id(services, request),
        headers.get(services.tenant_header, b""),
        services.learner.rates(asked.name, services.router.pool),
        read.measured,
        headers.get(names.QUESTION_ID, b""),
        services.tasks.task_of(headers.get(names.TASK), asked.route, has_tools=asked.prompt.has_tools),
    )
    facts = services.router.pool.called(facts, asked.name)
    if services.router.pool.prefilling and _may_split(services, request, facts):
        facts = msgspec.structs.replace(facts, may_split=True)
    if services.charges_tenants and (tenant := services.waiting.naming.tenant(headers)):
        facts = msgspec.structs.replace(facts, answer_length=services.admission.lengths.of(tenant))
    slo = services.waiting.slo(headers, asked.name)
    return facts if slo is None else msgspec.structs.replace(facts, slo=slo)


def _may_split(services: Services, request: HttpRequest, facts: RequestFacts) -> bool:
    """Whether one engine could compute its prompt and another decode it.

    Its keys are read only where it matters to who is chosen: an endpoint that computes prompts too does so in the end.
    """
    if len(request.body) > _MOST_SPLIT_BYTES:  # it is sent twice, in one piece
        return False
    if request.path not in SPLIT_PATHS or facts.media or facts.adapter:
        return False
    return not services.router.pool.has_halves or spans_to_split(whole(request.body)) is not None


def _admitted(services: Services, prepared: Prepared, now_s: float) -> Admitted | Refusal:
    request, read, asked, facts = prepared.request, prepared.read, prepared.asked, prepared.facts
    headers, router, cascades = request.headers, services.router, services.cascades
    others = () if asked.shaped is None else asked.shaped.others
    if not facts.unread and cascades.routes and (cascade := cascades.route_of(asked.name, headers)) is not None:
        judged = request.can_hold and read.decodes_quickly
        return cascades.admit(router, cascade, request, asked, facts, others, now_s, judged=judged)
    in_flight = services.admission.admit(router, facts, request.subset, now_s, others)
    return in_flight if isinstance(in_flight, Refusal) else Admitted(in_flight, in_flight.request)


def _sent(services: Services, prepared: Prepared, admitted: Admitted, started_s: float) -> Pick | Refused:
    request, asked = prepared.request, prepared.asked
    in_flight, facts, entry = admitted
    sent: Body | None = request.body
    saved, decision = b"", in_flight.decision
    if asked.shaped is not None:
        facts, sent, saved = services.reuse.settle(
            asked.shaped, decision, facts, whole(request.body), services.router.index, started_s
        )
    written = asked.written
    renamed = decision.model if written not in (decision.model, ANY_MODEL) else None
    if sent is not None and (renamed is not None or asked.prompt.reserved or asked.prompt.media_names or asked.salt):
        sent = _edited(sent, asked, renamed, entry, as_read=sent is request.body)
        if sent is None:
            in_flight.withdraw(started_s)
            return Refused(_UNEDITABLE, asked.route)
    now_s = services.clock_s()
    hop = in_flight.hop
    waits = hop is not None and hop.connector != BY_PROXY
    if not waits:
        if hop is not None:
            in_flight.prefilled_elsewhere(now_s, ended=False)
        in_flight.sent(facts, now_s, streams=asked.prompt.streams)
    services.recorder.decided(facts, decision, request.id, prepared.read_s + now_s - started_s)
    changed = None if sent is request.body else sent
    if (copy := in_flight.claim_copy()) is not None:
        body = request.body if changed is None else changed
        services.mover.offer(
            copy, facts, request.path, whole(body) if len(body) <= MOST_BODY_BYTES else None, request.trace
        )
    unsent, renamed_from = facts if waits else None, written if renamed else ""
    route, streams = asked.route or decision.model, asked.prompt.streams
    return Pick(in_flight, route, changed, saved, entry, renamed_from, unsent, streams)


_MOST_SPLIT_BYTES: Final = 2 << 20
_ENDING_BYTES: Final = 256
_UNEDITABLE: Final = refusals.malformed(
    f"The body has a key twice at its top level, or more than {MOST_SPANS} keys; write each once", None
)


def _edited(body: Body, asked: Asked, model: str | None, entry: Entry | None, *, as_read: bool) -> Body | None:
    """`body` that names the chosen model, and without what only a gateway may ask of an engine. Unless it is the body
    `as_read`, it is another one of the same prompt.
    """
    prompt = asked.prompt
    if prompt.model_span is not None:
        start, end = prompt.model_span
        return spliced_body(body, [(start, end, (model or "").encode())])
    one_piece = entry is not None and entry.streams
    changes: list[tuple[int, int, bytes]] = []
    if model is not None or prompt.reserved or prompt.media_names or prompt.cache_salt or one_piece:
        spans = asked.spans if as_read else None
        spans = object_spans(whole(body)) if spans is None else spans
        named = prompt.media_names if as_read or not prompt.media_names else names_in(whole(body))
        if spans is None or named is None:
            return None
        changes = edits(spans, model, prompt.reserved, named, asked.salt, one_piece=one_piece)
    if asked.salt and not prompt.cache_salt:
        new, size_bytes = b'"cache_salt":%b' % asked.salt, len(body)
        change = addition(new, ending(body, _ENDING_BYTES), size_bytes) or addition(new, whole(body), size_bytes)
        if change is None:
            return None
        changes.append(change)
    return spliced_body(body, changes)


def _session_id(services: Services, request: HttpRequest) -> bytes | None:
    if request.path not in BINDING_PATHS:
        return None
    for name in services.session_headers:
        value = request.headers.get(name)
        if value:
            return value
    return None
