"""What one answer showed of its engine, and the timed parts of it that a fit can use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from fairlead.api.usage import UsageForm
from fairlead.core.adapter_slots import AdapterNeed
from fairlead.core.answer_times import Work
from fairlead.core.prefill_work import attended_tokens
from fairlead.core.token_model import Features

LEAST_DECODE_TOKENS: Final = 16
_ESTIMATED_TRUST: Final = 0.3  # in a prompt's length as routing estimated it
_FULL_TRUST: Final = 0.03  # in a wait for an engine that had no room: most of it has causes that are not known here
_FULL_DECODE_TRUST: Final = 0.15  # and in the decoding there, which preemptions interrupt
STEPS_BEFORE: Final = 1.5  # of the batch that a prefill joins: half of the one under way, and its own
_ENGINE_TIME_BOUND_MS: Final = 1e12
_MOST_TOKENS_PER_MS: Final = 10_000.0  # no engine computes more: these were cached, or their count is absurd
_MOST_TOGETHER_TOKENS: Final = 2048  # of a step: the least budget that engines have for it by default


class Observation(msgspec.Struct, frozen=True, gc=False):
    """One answer, observed in full. Unknown is None, which is not 0."""

    address: str  # of the engine that gave it
    model: str
    estimated_tokens: int  # as routing used them, with the rates that were in force
    queued_tokens: int  # waiting at the endpoint when the request was sent there
    rtt_ms: float
    first_token_ms: float | None = None  # from the pick
    first_tokens: int = 1  # that came together with the first: parts are bundled where somebody waits for a core
    decode_ms: float | None = None  # from the first token to the end
    concurrent_requests: float = 0.0  # others that decoded at the engine while it did, on average
    prefilled_tokens: int = 0  # of others' prompts there meanwhile
    under_way_tokens: int = 0  # of another's prompt whose prefill was not done at the end; some of them were computed
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    usage_form: UsageForm | None = None  # in which its engine told these
    completion_tokens: int | None = None
    total_ms: float | None = None  # from the pick to the end, of an answer in one piece
    expected_cached_tokens: int = 0  # as routing took them
    decoding_before: int = 0  # others that decoded at the engine when the request was sent there
    direct: bool = True  # no other endpoint was tried first
    adapter: AdapterNeed | None = None  # what its adapter was expected to need there
    engine_full: bool = False  # requests were seen to wait for room there
    media: int = 0  # images and the like in the prompt
    features: Features = ()  # of the prompt, see `core.token_model`
    several: bool = False  # texts were made at the same time: its tokens are of all of them, its times of one
    ended_s: float = 0.0  # of the router's clock
    queued_attended_tokens: int = 0  # before those that waited, and before those of others that were prefilled:
    prefilled_attended_tokens: int = 0  # see `core.prefill_work`
    came_after_tokens: int = 0  # of prompts sent there after it, before its first token


def works_of(seen: Observation, *, reports_cache: bool) -> Iterable[Work]:
    """The timed parts of an answer. `reports_cache`: those of its form say how much was cached, where anything was."""
    if seen.first_token_ms is not None:
        steps = max(0, (seen.completion_tokens or 0) - seen.first_tokens)
        yield from _until_first_token(seen, reports_cache=reports_cache)
        if seen.decode_ms and steps >= LEAST_DECODE_TOKENS and seen.decode_ms < _ENGINE_TIME_BOUND_MS:
            others, concurrent = float(seen.prefilled_tokens), steps * seen.concurrent_requests
            trust = _FULL_DECODE_TRUST if seen.engine_full else 1.0
            unsure = float(seen.under_way_tokens)
            yield Work(
                seen.decode_ms, 0.0, 0.0, others, float(steps), concurrent, unsure, trust, seen.ended_s,
                other_attended=float(seen.prefilled_attended_tokens),
            )  # fmt: skip
        return
    steps = max(0, (seen.completion_tokens or 0) - 1)
    took_ms = 0.0 if seen.total_ms is None else seen.total_ms - seen.rtt_ms
    if seen.completion_tokens and seen.direct and not seen.media and 0 < took_ms < _ENGINE_TIME_BOUND_MS:
        own, own_attended, unsure, trust = _computed(seen, reports_cache=reports_cache)
        if own > took_ms * _MOST_TOKENS_PER_MS:
            return
        waited, others_before = _steps_before(seen)
        concurrent = others_before + steps * seen.concurrent_requests
        others = float(seen.prefilled_tokens)
        unsure += seen.under_way_tokens
        trust *= _FULL_DECODE_TRUST if seen.engine_full else 1.0
        yield Work(
            took_ms, 1.0, own, others, waited + steps, concurrent, unsure, trust, seen.ended_s,
            own_attended, float(seen.prefilled_attended_tokens),
        )  # fmt: skip


def _until_first_token(seen: Observation, *, reports_cache: bool) -> Iterable[Work]:
    took_ms = (seen.first_token_ms or 0.0) - seen.rtt_ms
    if (
        seen.media or not seen.direct or not 0 < took_ms < _ENGINE_TIME_BOUND_MS
    ):  # an image's encoding is no prefill of tokens
        return
    own, own_attended, unsure, trust = _computed(seen, reports_cache=reports_cache)
    if own > took_ms * _MOST_TOKENS_PER_MS:
        return
    waited, concurrent = _steps_before(seen)
    more = seen.first_tokens - 1
    concurrent += more * seen.concurrent_requests
    trust *= _FULL_TRUST if seen.engine_full else 1.0
    unsure += min(seen.came_after_tokens, _MOST_TOGETHER_TOKENS)
    ended_s = seen.ended_s - (seen.decode_ms or 0.0) / 1e3
    yield Work(
        took_ms, 1.0, own, float(seen.queued_tokens), waited + more, concurrent, unsure, trust, ended_s,
        own_attended, float(seen.queued_attended_tokens),
    )  # fmt: skip


def _steps_before(seen: Observation) -> tuple[float, float]:
    """Decode steps that a prefill waits for and shares, and the sum over them of the other requests that decode."""
    if not seen.decoding_before:
        return 0.0, 0.0
    return STEPS_BEFORE, STEPS_BEFORE * (seen.decoding_before - 1)


def _computed(seen: Observation, *, reports_cache: bool) -> tuple[float, float, float, float]:
    """Prompt tokens that were computed, those that they attended, those that may have been computed but are taken to be
    cached, and the trust in these.

    An engine that never reported a cached token may have had more or fewer than routing expects, whether it reports
    nothing or 0; of a prompt that is new to routing it had none.
    """
    prompt, trust = seen.prompt_tokens, 1.0
    if prompt is None:
        prompt, trust = seen.estimated_tokens, _ESTIMATED_TRUST
    cached, unsure = seen.cached_tokens, 0.0
    if not cached and not reports_cache:
        share = seen.expected_cached_tokens / max(1, seen.estimated_tokens)  # routing may count tokens otherwise
        unsure = min(share, 1.0) * prompt
        cached = round(unsure) if cached is None else cached
    computed = max(1, prompt - (cached or 0))
    return float(computed), float(attended_tokens(prompt, computed)), unsure, trust
