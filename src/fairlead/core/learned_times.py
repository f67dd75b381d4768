"""Milliseconds per token of one model, and by what factor one of its engines is slower, as answers showed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import fmean, median
from typing import Final

from fairlead.core.adapter_slots import USUAL_LOAD_MS
from fairlead.core.answer_times import EQUAL, Fit, Line, Ratios, Work, fit, growth_of, weight
from fairlead.core.endpoint import USUAL_SLOWDOWN, EndpointSpec
from fairlead.core.engine_factor import EngineFactor, decode_ms, prefill_ms
from fairlead.core.observation import LEAST_DECODE_TOKENS
from fairlead.core.prefill_growth import PrefillGrowth
from fairlead.core.speed_changes import SpeedChanges

WINDOW: Final = 101
LEAST_LOADS: Final = 4  # of adapters, to believe in how long they took
LEAST_SAMPLES: Final = 8
MOST_ERROR: Final = 0.2  # relative, of a constant that takes the place of one that was learned
MOST_FIRST_ERROR: Final = 0.5  # in place of a configured one: engines differ by factors of ten
LEAST_PREFILL_WEIGHT: Final = 2.0  # of an engine's samples, to compare its prefill speed with its model's
MOST_WORKS: Final = 192  # of a model that count in a fit
_MOST_UNSETTLED: Final = 1024
_HALF_LIFE: Final = 48.0  # undisturbed samples of a model
_UNSEEN_S: Final = 60.0  # of its model's serving, without an answer of its own: half of what an engine showed is left,
_UNSEEN_SAMPLES: Final = 128  # if its model's other engines answered at least so much
_COUNTS: Final = 0.02  # of a sample's weight; what is left of older ones is not kept


class Running:
    """A statistic of the last samples, or `start` while they are few."""

    __slots__ = ("_least", "_of", "kept", "value")

    def __init__(self, of: Callable[[Collection[float]], float], start: float, least: int = LEAST_SAMPLES) -> None:
        self.value = start
        self._of = of
        self._least = least
        self.kept: deque[float] = deque(maxlen=WINDOW)

    def add(self, sample: float) -> None:
        self.kept.append(sample)
        if len(self.kept) >= self._least:
            self.value = self._of(self.kept)

    @property
    def samples(self) -> int:
        return len(self.kept)

    @property
    def learned(self) -> bool:
        return len(self.kept) >= self._least


class ModelTimes:
    """What engines of one model were seen to take.

    The line is of an engine of which nothing is configured but the model's times. Samples of another are scaled to it,
    by what is configured of that one and by what its own answers showed beyond it: so every engine teaches the same
    line, and a difference that is configured holds from the first answer on.
    """

    __slots__ = (
        "_before",
        "_growth",
        "_line",
        "_new",
        "adapter_load_ms",
        "answer_tokens",
        "decode_changes",
        "knows_decode",
        "knows_prefill",
        "newest_s",
        "prefill_changes",
        "taken",
        "usual",
        "works",
    )

    def __init__(self, spec: EndpointSpec, answer_tokens: float) -> None:
        self.answer_tokens = Running(fmean, answer_tokens)
        self.adapter_load_ms = Running(median, USUAL_LOAD_MS, LEAST_LOADS)
        self.works: deque[Work] = deque(maxlen=_MOST_UNSETTLED)
        self.taken = 0  # samples so far
        self.newest_s = -math.inf  # when the last answer ended: speeds are those of then
        self.decode_changes, self.prefill_changes = SpeedChanges(), SpeedChanges()
        self.knows_prefill = self.knows_decode = False
        self.usual = EQUAL  # by how much engines are slower than is configured, on average: the line includes it
        prefill_ms, decode_ms = spec.prefill_ms_per_token, spec.decode_ms_per_token
        self._before = Line(0.0, prefill_ms / spec.prefill_ratio, decode_ms / spec.decode_ratio, USUAL_SLOWDOWN)
        self._line = self._before
        self._new = 0
        self._growth = PrefillGrowth()

    @property
    def line(self) -> Line:
        """The constants in force; one that is not known has its configured value."""
        return self._line

    @property
    def since_s(self) -> float | None:
        """When the oldest answer ended that still counts."""
        return min((each.ended_s for each in self.works), default=None)

    def add(self, work: Work, slower: Ratios = EQUAL) -> None:
        """Keep a sample of an engine that is `slower` than the line says."""
        self.works.append(slower.work(work))
        self.newest_s = max(self.newest_s, work.ended_s)
        self.taken += 1
        self._new += 1

    def settle(self) -> None:
        """Fit again where something came since, and keep no more than what counts."""
        if not self._new:
            return
        self._new = 0
        recency = self._forget()
        prompts = sum(each.own_tokens > 0 for each in self.works)
        answers = sum(each.steps >= LEAST_DECODE_TOKENS for each in self.works)
        if max(prompts, answers) >= LEAST_SAMPLES:
            growth = self._growth
            before = self._before._replace(growth=growth.value)
            if growth.is_due(self.taken):
                growth.add(growth_of(self.works, recency, before))
            self._take(fit(self.works, recency, before._replace(growth=growth.value)), prompts, answers)

    def restore(self, works: Iterable[Work], line: Line, knows_prefill: bool, knows_decode: bool) -> None:
        """Go on from what another process knew."""
        for work in works:
            self.add(work)
        self._line, self.knows_prefill, self.knows_decode = line, knows_prefill, knows_decode
        self._growth.restore(line.growth)

    def _take(self, found: Fit, prompts: int, answers: int) -> None:
        """A constant that was known, and that these samples do not determine well, stays as it was."""
        line, now = found.line, self._line
        if prompts >= LEAST_SAMPLES and found.prefill_error <= (MOST_ERROR if self.knows_prefill else MOST_FIRST_ERROR):
            now = now._replace(fixed_ms=line.fixed_ms, prefill_ms=line.prefill_ms, growth=line.growth)
            self.knows_prefill = True
        if answers >= LEAST_SAMPLES and found.decode_error <= (MOST_ERROR if self.knows_decode else MOST_FIRST_ERROR):
            now = now._replace(alone_ms=line.alone_ms, slowdown=line.slowdown)
            self.knows_decode = True
        self._line = now

    def _forget(self) -> list[float]:
        """The weight that age leaves to each sample. A sample of little weight ages the others as little."""
        newer, kept = 0.0, []
        for each in reversed(self.works):
            share = weight(each, self._line)
            recency = 0.5 ** (newer / _HALF_LIFE)
            newer += share
            if recency * each.trust >= _COUNTS:
                kept.append((recency * share, recency, each))
        kept.reverse()
        if len(kept) > MOST_WORKS:
            least = sorted(value for value, _, _ in kept)[len(kept) - MOST_WORKS]
            kept = [one for one in kept if one[0] >= least][-MOST_WORKS:]
        self.works = deque((each for _, _, each in kept), maxlen=_MOST_UNSETTLED)
        return [recency for _, recency, _ in kept]


class EngineTimes:
    """What one engine was seen to take.

    One that answers nothing while others of its model do is forgotten again, by and by: what was seen of it keeps
    requests away, and if chance had part in that, or its cause is gone, only another request can show it.
    """

    __slots__ = ("_seen", "adapter_load_ms", "decode", "extra_ms", "prefill", "reports_cache")

    def __init__(self) -> None:
        self.prefill = EngineFactor(prefill_ms)
        self.decode = EngineFactor(decode_ms)
        self.extra_ms = 0.0  # of each request here, beyond what it takes at other engines of the model
        self.adapter_load_ms = Running(median, USUAL_LOAD_MS, LEAST_LOADS)
        self._seen = 0  # samples of its model, at its own last one
        self.reports_cache = False  # it once reported cached tokens; from then on none reported means 0

    def slower(self, model: ModelTimes, configured: Ratios) -> Ratios:
        """Than the model's line, of which it makes up for what is usual."""
        return Ratios(
            configured.prefill * self.prefill.value / model.usual.prefill,
            configured.decode * self.decode.value / model.usual.decode,
        )

    def add(self, work: Work, model: ModelTimes, configured: Ratios) -> None:
        line = configured.line(model.line)
        self._seen = model.taken
        if work.own_tokens:
            self.prefill.add(work, line, model.prefill_changes)
        if work.steps > LEAST_DECODE_TOKENS:
            self.decode.add(work, line, model.decode_changes)

    def restore(self, prefill: Iterable[Work], decode: Iterable[Work], model: ModelTimes, configured: Ratios) -> None:
        """Go on from what another process knew."""
        line = configured.line(model.line)
        self._seen = model.taken
        for work in prefill:
            self.prefill.add(work, line, model.prefill_changes)
        for work in decode:
            self.decode.add(work, line, model.decode_changes)

    def settle(self, model: ModelTimes, configured: Ratios) -> None:
        """Compare it with its model's line, as far as that holds for an engine that is `configured` as this one."""
        line, now_s = configured.line(model.line), model.newest_s
        decode, prefill = self.decode.seen(line), self.prefill.seen(line)
        changed_s = max(decode.changed_s(), prefill.changed_s())
        self.decode.settle(decode.since(changed_s), model.decode_changes, now_s)
        self.prefill.settle(prefill.since(changed_s), model.prefill_changes, now_s, self.decode.value)
        self.extra_ms = self.prefill.extra_ms(line, self.decode.value)
        if self.extra_ms:
            self.prefill.value = self.decode.value
        elif self.decode.value != 1.0 and self.prefill.weight < LEAST_PREFILL_WEIGHT:
            self.prefill.value = self._prefill_within_answers(line)
        self._fade(model)

    def _fade(self, model: ModelTimes) -> None:
        """Leave less of what it showed, the longer it has shown nothing while others did."""
        last = [each.samples[-1].ended_s for each in (self.decode, self.prefill) if each.samples]
        if last:
            ago_s = max(0.0, model.newest_s - max(last))  # a model may have kept none of its newest samples in a file
            unseen = min(ago_s / _UNSEEN_S, (model.taken - self._seen) / _UNSEEN_SAMPLES)
            left = math.exp2(-unseen)
            self.decode.value = math.pow(self.decode.value, left)
            self.prefill.value = math.pow(self.prefill.value, left)
            self.extra_ms *= left

    def _prefill_within_answers(self, line: Line) -> float:
        """The prefill factor of an engine whose answers come in one piece: prefill is a small part of each."""
        factor, whole = self.decode.value, [each for each in self.decode.samples if each.requests]
        if len(whole) < LEAST_SAMPLES:
            return self.prefill.value
        before = line._replace(prefill_ms=line.prefill_ms * factor, alone_ms=line.alone_ms * factor)
        found = fit(whole, [1.0] * len(whole), before)
        return found.line.prefill_ms / line.prefill_ms if found.prefill_error <= MOST_ERROR else factor


def ratios_of(spec: EndpointSpec) -> Ratios:
    """By how much an engine is slower than its model's line, as configured."""
    return Ratios(spec.prefill_ratio, spec.decode_ratio)


def usual(engines: Collection[EngineTimes]) -> Ratios:
    """By how much these are slower than is configured, on average; an engine counts by its samples."""
    return Ratios(_mean([each.prefill for each in engines]), _mean([each.decode for each in engines]))


def _mean(factors: Sequence[EngineFactor]) -> float:
    total = sum(each.weight for each in factors)
    return math.exp(sum(each.weight * math.log(each.value) for each in factors) / total) if total > 0 else 1.0
