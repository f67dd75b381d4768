"""What engines say of their own speed: the sums of times and tokens on their metrics pages.

They are of all that an engine served, for whomever, so a sidecar that has seen no answer yet, or sees none, can go by
them. They are coarse: requests share an engine's time, and a sum does not say how. By Little's law as many requests are
in prefill at a time as prefill takes of it, all added up, and likewise in decoding. An engine spends a `share` of its
time in prefill, taken to be shared out evenly (M/G/1 with processor sharing), which all steps wait for:

    prefilling  = share / (1 - share)
    ms of token = ms of token alone / (1 - share)
    ms of step  = ms of step alone * (1 + slowdown * decoding) / (1 - share)

So what answers show takes their place as soon as it is known (`core.learned_times`).
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final, NamedTuple, TypeVar

from fairlead.core.endpoint import USUAL_SLOWDOWN, Endpoint, EndpointSpec
from fairlead.core.reported import AnswerSums

_Number = TypeVar("_Number", int, float)

_LEAST_ANSWERS: Final = 16  # to go by their sums
_LEAST_TOKENS: Final = 64  # computed, of an answer on average: fewer show fixed costs, or a prompt that came as KV
_WINDOW_S: Final = 30.0  # at least; then the next begins
_LEAST_MS: Final = 1e-4  # for a token: no accelerator takes less,
_MOST_MS: Final = 1e4  # or more


class Times(NamedTuple):
    """Milliseconds for a token of an engine alone; None: its sums do not say."""

    prefill_ms: float | None
    decode_ms: float | None


UNSAID: Final = Times(None, None)


class ReportedTimes:
    """The sums of one engine: of its whole life at first, then of what was added, half a minute and more at a time."""

    __slots__ = ("_began_s", "_from", "_generation", "value")

    def __init__(self) -> None:
        self.value = UNSAID
        self._from: AnswerSums | None = None
        self._began_s = 0.0
        self._generation = 0

    def look(self, endpoint: Endpoint) -> bool:
        """Take up its last report; whether `value` is another one since."""
        sums, read_s, began = endpoint.report.sums, endpoint.report.read_s, self._from
        if sums is None or read_s is None:
            return False
        if began is None or endpoint.generation != self._generation or sums.answers < began.answers:
            added, lasted_s = sums, None  # since it started
        else:
            added, lasted_s = _minus(sums, began), read_s - self._began_s
            if added.answers < _LEAST_ANSWERS or lasted_s < _WINDOW_S:
                return False
        self._from, self._began_s, self._generation = sums, read_s, endpoint.generation
        found, before = times(added, lasted_s), self.value
        self.value = Times(
            before.prefill_ms if found.prefill_ms is None else found.prefill_ms,
            before.decode_ms if found.decode_ms is None else found.decode_ms,
        )
        return self.value != before


def times(sums: AnswerSums, lasted_s: float | None = None) -> Times:
    """Of answers that ended within `lasted_s`; None: it is not known, and they are taken not to have overlapped."""
    if sums.answers < _LEAST_ANSWERS:
        return UNSAID
    prefill_s, decode_s, tokens, steps = sums.prefill_s, sums.decode_s, sums.computed_tokens, sums.steps
    prefilling = prefill_s / (lasted_s * sums.ranks) if lasted_s and prefill_s else 0.0
    decoding = decode_s / (lasted_s * sums.ranks) if lasted_s and decode_s else 0.0
    others = 1 + prefilling  # 1 / (1 - share), by which all takes longer
    prefill_ms = decode_ms = None
    if prefill_s and tokens and tokens >= _LEAST_TOKENS * sums.answers:
        prefill_ms = _believed(prefill_s * 1e3 / tokens / others)
    if decode_s and steps and steps >= _LEAST_ANSWERS:
        decode_ms = _believed(decode_s * 1e3 / steps / others / (1 + USUAL_SLOWDOWN * decoding))
    return Times(prefill_ms, decode_ms)


def of_model(engines: Iterable[tuple[EndpointSpec, Times]]) -> Times:
    """Of an engine of which nothing is configured but its model's times: the median of what its engines say.

    They differ by the load that each had, so equal engines are not told apart by it.
    """
    known = list(engines)
    prefill = [said.prefill_ms / spec.prefill_ratio for spec, said in known if said.prefill_ms is not None]
    decode = [said.decode_ms / spec.decode_ratio for spec, said in known if said.decode_ms is not None]
    return Times(median(prefill) if prefill else None, median(decode) if decode else None)


def _believed(ms: float) -> float | None:
    return ms if _LEAST_MS <= ms <= _MOST_MS else None


def _minus(sums: AnswerSums, before: AnswerSums) -> AnswerSums:
    return AnswerSums(
        sums.answers - before.answers,
        _difference(sums.prefill_s, before.prefill_s),
        _difference(sums.computed_tokens, before.computed_tokens),
        _difference(sums.decode_s, before.decode_s),
        _difference(sums.steps, before.steps),
        sums.ranks,
    )


def _difference(now: _Number | None, before: _Number | None) -> _Number | None:
    return now - before if now is not None and before is not None and now >= before else None
