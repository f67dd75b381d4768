"""Decisions as the admin pages show them: the latest, and all that is kept of the requests with one id.

They hold no prompt and no session id. A request that is tried again, by its client or by a cascade, has one
decision and one ending for each attempt.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import msgspec

from fairlead.core.policy import Policy, Ranked
from fairlead.core.prefill_decode import Hops, PrefillChoice
from fairlead.extproc.recorder import KEPT_DECISIONS, DecisionRecord, Ending, Recorder

NO_SUCH_REQUEST: Final = (
    f"none of the last {KEPT_DECISIONS} decisions of this sidecar, nor of the last {KEPT_DECISIONS} requests that it "
    "refused, has this x-request-id; the answer's own x-request-id names it. Several sidecars know only their own."
)

Document = dict[str, Any]


def latest(recorder: Recorder, limit: int) -> list[Document]:
    """Newest first."""
    recorder.settle()
    return [_decision(record) for record in islice(reversed(recorder.decisions), limit)]


def story(recorder: Recorder, request_id: str) -> Document | None:
    """Decisions and endings of the requests with this id, oldest first; None where nothing is kept of it."""
    decided, ended = recorder.story(request_id)
    if not decided and not ended:
        return None
    events = [{"event": "decision"} | _decision(record) for record in decided]
    events += [{"event": "refused" if not each.model else "ended"} | _ending(each) for each in ended]
    return {"request_id": request_id, "events": sorted(events, key=lambda event: float(event["at"]))}


def _decision(record: DecisionRecord) -> Document:
    shown = msgspec.structs.asdict(record)
    policy: Policy = shown.pop("policy")
    best = [_choice(ranked, policy) for ranked in record.best]
    return shown | {"best": best, "prefill": None if record.prefill is None else _ways(record.prefill)}


def _ways(choice: PrefillChoice) -> Document:
    """Both ways to compute the prompt, in their terms."""
    return {"taken": "split" if choice.is_split else "alone", "alone": _way(choice.alone), "split": _way(choice.split)}


def _way(hops: Hops) -> Document:
    return msgspec.structs.asdict(hops) | {"total_ms": hops.total_ms()}


def _choice(ranked: Ranked, policy: Policy) -> Document:
    candidate, terms = ranked.candidate, policy.explain(ranked.candidate)
    shown = None if terms is None else msgspec.structs.asdict(terms) | {"total_ms": terms.total_ms()}
    return {"address": candidate.address, "model": candidate.model, "score": ranked.score, "terms": shown}


def _ending(ending: Ending) -> Document:
    """Times are in ms; unknown is null, which is not 0."""
    outcome, total_ms = ending.outcome, 1e3 * ending.duration_s
    return {
        "at": ending.at,
        "request_id": ending.request_id.decode("latin-1"),
        "asked": ending.route,
        "model": ending.model,
        "endpoint": ending.endpoint,
        "code": ending.code,
        "total_ms": total_ms,  # from its headers
        "until_decision_ms": None if outcome is None else max(0.0, total_ms - outcome.total_ms),
        "first_token_ms": None if outcome is None else outcome.first_token_ms,  # from the decision
        "prompt_tokens": None if outcome is None else outcome.prompt_tokens,
        "cached_tokens": None if outcome is None else outcome.cached_tokens,
        "completion_tokens": None if outcome is None else outcome.completion_tokens,
        "message": _message(ending.refusal),
    }


def _message(body: bytes) -> str:
    """Of an error that Fairlead answered; empty where it is none."""
    if not body:
        return ""
    return str(msgspec.json.decode(body)["error"]["message"])
