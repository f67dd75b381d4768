"""Milliseconds per token of one model, and by what factor one of its engines is slower, as answers showed."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable
from statistics import fmean, median
from typing import Final, NamedTuple

from fairlead.api.usage import UsageForm
from fairlead.core.adapter_slots import USUAL_LOAD_MS
from fairlead.core.answer_times import EQUAL, Fit, Line, Ratios, Work, fit, growth_of, weight
from fairlead.core.endpoint import USUAL_SLOWDOWN, EndpointSpec
from fairlead.core.engine_factor import EngineFactor, decode_ms, prefill_ms
from fairlead.core.observation import LEAST_DECODE_TOKENS
from fairlead.core.prefill_growth import PrefillGrowth
from fairlead.core.running import LEAST_LOADS, LEAST_SAMPLES, Running
from fairlead.core.speed_changes import SpeedChanges

MOST_ERROR: Final = 0.2  # relative, of a constant that takes the place of one that was learned
MOST_FIRST_ERROR: Final = 0.5  # in place of a configured one: engines differ by factors of ten
LEAST_PREFILL_WEIGHT: Final = 2.0  # of samples, to change what is known of a model's prefill, or of an engine's
MOST_WORKS: Final = 192  # of a model that count in a fit
_MOST_UNSETTLED: Final = 1024
_HALF_LIFE: Final = 48.0  # undisturbed samples of a model
_UNSEEN_S: Final = 60.0  # of its model's serving, without an answer of its own: half of what an engine showed is left,
_UNSEEN_SAMPLES: Final = 128  # if its model's other engines answered at least so much
_MOVED: Final = 0.02  # of the logarithm of a difference: a line need not be fitted again for less
_COUNTS: Final = 0.02  # of a sample's weight; what is left of older ones is not kept


class Sample(NamedTuple):
    """What one answer took at an engine; of one that is not known, as if by its model's line."""

    work: Work
    engine: EngineTimes | None = None
    configured: Ratios = EQUAL

    @property
    def slower(self) -> Ratios:
        """Than the model's line, its engine."""
        return EQUAL if self.engine is None else self.engine.slower(self.configured)

    def by_line(self) -> Work:
        """Work that takes by the model's line as long as this took that engine."""
        return self.slower.work(self.work)


class ModelTimes:
    """What engines of one model were seen to take.

    The line is of an engine of which nothing is configured but the model's times, and no answer showed more: by their
    samples, half of the engines are such or slower. Samples of another are scaled to it, by what is configured of that
    one and by what its own answers showed beyond it: so every engine teaches the same line, and a difference that is
    configured holds from the first answer on.
    """

    __slots__ = (
        "_before",
        "_growth",
        "_line",
        "_unfitted",
        "adapter_load_ms",
        "answer_tokens",
        "decode_changes",
        "knows_decode",
        "knows_prefill",
        "newcomer",
        "newest_s",
        "prefill_changes",
        "samples",
        "taken",
    )

    def __init__(self, spec: EndpointSpec, answer_tokens: float) -> None:
        self.answer_tokens = Running(fmean, answer_tokens)
        self.adapter_load_ms = Running(median, USUAL_LOAD_MS, LEAST_LOADS)
        self.newcomer = EngineTimes()  # what is expected of an engine of which nothing was seen
        self.samples: deque[Sample] = deque(maxlen=_MOST_UNSETTLED)
        self.taken = 0  # samples so far
        self.newest_s = -math.inf  # when the last answer ended: speeds are those of then
        self.decode_changes, self.prefill_changes = SpeedChanges(), SpeedChanges()
        self.knows_prefill = self.knows_decode = False
        prefill_ms, decode_ms = spec.prefill_ms_per_token, spec.decode_ms_per_token
        self._before = Line(0.0, prefill_ms / spec.prefill_ratio, decode_ms / spec.decode_ratio, USUAL_SLOWDOWN)
        self._line = self._before
        self._unfitted = False
        self._growth = PrefillGrowth()

    @property
    def line(self) -> Line:
        """The constants in force; one that is not known has its configured value."""
        return self._line

    @property
    def since_s(self) -> float | None:
        """When the oldest answer ended that still counts."""
        return min((each.work.ended_s for each in self.samples), default=None)

    @property
    def works(self) -> list[Work]:
        """The samples as they would be at an engine of which the line holds."""
        return [each.by_line() for each in self.samples]

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.newest_s = max(self.newest_s, sample.work.ended_s)
        self.taken += 1
        self._unfitted = True

    def settle(self, *, again: bool = False) -> None:
        """Fit again where something came since, or `again`, and keep no more than what counts."""
        if not (self._unfitted or again):
            return
        self._unfitted = False
        works, recency = self._forget()
        prompts = sum(each.own_tokens > 0 for each in works)
        answers = sum(each.steps >= LEAST_DECODE_TOKENS for each in works)
        if max(prompts, answers) >= LEAST_SAMPLES:
            growth = self._growth
            before = self._before._replace(growth=growth.value)
            if growth.is_due(self.taken):
                growth.add(growth_of(works, recency, before))
            self._take(fit(works, recency, before._replace(growth=growth.value)), prompts, answers)

    def restore(self, samples: Iterable[Sample], line: Line, knows_prefill: bool, knows_decode: bool) -> None:
        """Go on from what another process knew."""
        for each in samples:
            self.add(each)
        self._line, self.knows_prefill, self.knows_decode = line, knows_prefill, knows_decode
        self._growth.restore(line.growth)

    def level(self, engines: Collection[EngineTimes]) -> None:
        """Let the line be of the engine in the middle of these, by what each was seen to be slower.

        The mean would make every engine look slower for a single one that is. For none of them this changes what is
        expected of it. One of which nothing was seen is taken to be as most that answer are.
        """
        seen = [each for each in engines if each.weight > 0]
        if not seen:
            return
        middle = self._middle(seen).slower(EQUAL)
        if middle != EQUAL:
            self._rescale(middle, engines)
        at_work = [each for each in seen if each.unseen < 1] or seen
        self.newcomer.prefill.value = _halfway([each.prefill.seen_value for each in at_work])
        self.newcomer.decode.value = _halfway([each.decode.seen_value for each in at_work])

    def _middle(self, engines: Collection[EngineTimes]) -> EngineTimes:
        """That one of which the middle sample is. What is slow at prefill and what is at decoding belong together."""
        answers = Counter(each.engine for each in self.samples)
        ordered = sorted(engines, key=lambda each: each.prefill.seen_value * each.decode.seen_value)
        left = sum(answers[each] for each in ordered) / 2
        for each in ordered:
            left -= answers[each]
            if left <= 0:
                return each
        return ordered[-1]

    def _rescale(self, slower: Ratios, engines: Collection[EngineTimes]) -> None:
        """Make the line `slower`, and everything else as much quicker."""
        there, quicker = set(engines), slower.inverse()
        self.samples = deque(
            # An engine may have left, or is not known.
            (one if one.engine in there else Sample(quicker.work(one.by_line())) for one in self.samples),
            maxlen=_MOST_UNSETTLED,
        )
        for engine in engines:
            engine.prefill.rescale(slower.prefill)
            engine.decode.rescale(slower.decode)
        self._line = slower.line(self._line)._replace(fixed_ms=self._line.fixed_ms * slower.prefill)

    def _take(self, found: Fit, prompts: int, answers: int) -> None:
        """A constant that was known, and that these samples do not determine well, stays as it was.

        The error of the fit is that of all samples. Where engines answer whose prompts others compute, most are of
        decoding alone, and fit well: a few short prompts that waited for something else would say what prefill takes.
        """
        line, now = found.line, self._line
        most_error, least = (MOST_ERROR, LEAST_PREFILL_WEIGHT) if self.knows_prefill else (MOST_FIRST_ERROR, 0.0)
        if prompts >= LEAST_SAMPLES and found.prefill_error <= most_error and found.prefill_weight >= least:
            now = now._replace(fixed_ms=line.fixed_ms, prefill_ms=line.prefill_ms, growth=line.growth)
            self.knows_prefill = True
        if answers >= LEAST_SAMPLES and found.decode_error <= (MOST_ERROR if self.knows_decode else MOST_FIRST_ERROR):
            now = now._replace(alone_ms=line.alone_ms, slowdown=line.slowdown)
            self.knows_decode = True
        self._line = now

    def _forget(self) -> tuple[list[Work], list[float]]:
        """The samples that still count, as `works`, and the weight that age leaves to each.

        A sample of little weight ages the others as little.
        """
        newer, kept = 0.0, []
        for each, work in zip(reversed(self.samples), reversed(self.works), strict=True):
            share = weight(work, self._line)
            recency = 0.5 ** (newer / _HALF_LIFE)
            newer += share
            if recency * work.trust >= _COUNTS:
                kept.append((recency * share, recency, each, work))
        kept.reverse()
        if len(kept) > MOST_WORKS:
            least = sorted(value for value, *_ in kept)[len(kept) - MOST_WORKS]
            kept = [one for one in kept if one[0] >= least][-MOST_WORKS:]
        self.samples = deque((each for _, _, each, _ in kept), maxlen=_MOST_UNSETTLED)
        return [work for *_, work in kept], [recency for _, recency, _, _ in kept]


class EngineTimes:
    """What one engine was seen to take.

    One that answers nothing while others of its model do is forgotten again, by and by: what was seen of it keeps
    requests away, and if chance had part in that, or its cause is gone, only another request can show it.
    """

    __slots__ = (
        "_before",
        "_seen",
        "adapter_load_ms",
        "decode",
        "extra_ms",
        "generation",
        "prefill",
        "reports",
        "unseen",
    )

    def __init__(self) -> None:
        self.prefill = EngineFactor(prefill_ms)
        self.decode = EngineFactor(decode_ms)
        self.extra_ms = 0.0  # of each request here, beyond what it takes at other engines of the model
        self.adapter_load_ms = Running(median, USUAL_LOAD_MS, LEAST_LOADS)
        self._before = EQUAL  # how much slower it was, before it was settled
        self.unseen = 0.0  # for how long, in times after which half of what it showed is left
        self._seen = 0  # samples of its model, at its own last one
        self.generation = 0  # of the engine's process
        # Forms of answers in which it once reported cached tokens: from then on none reported means 0.
        self.reports: set[UsageForm | None] = set()

    def reports_cache(self, form: UsageForm | None, cached_tokens: int | None, generation: int) -> bool:
        """Whether answers of that form say how much was cached. Another process may have been started otherwise."""
        if generation != self.generation:
            self.generation = generation
            self.reports.clear()
        if cached_tokens:
            self.reports.add(form)
        return form in self.reports

    @property
    def weight(self) -> float:
        """Of what was seen of it."""
        return self.prefill.weight + self.decode.weight

    @property
    def moved(self) -> bool:
        """At its last settling: it differs by something else than when its model's line was fitted."""
        now = self.slower(EQUAL)
        return any(abs(math.log(one / before)) > _MOVED for one, before in zip(now, self._before, strict=True))

    def slower(self, configured: Ratios) -> Ratios:
        """Than the model's line, as far as it was seen."""
        return Ratios(configured.prefill * self.prefill.seen_value, configured.decode * self.decode.seen_value)

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
        self._before = self.slower(EQUAL)
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
        """Expect less of what it showed, the longer it has shown nothing while others did."""
        self.prefill.seen_value, self.decode.seen_value = self.prefill.value, self.decode.value
        last = [each.samples[-1].ended_s for each in (self.decode, self.prefill) if each.samples]
        if last:
            ago_s = max(0.0, model.newest_s - max(last))  # a model may have kept none of its newest samples in a file
            self.unseen = min(ago_s / _UNSEEN_S, (model.taken - self._seen) / _UNSEEN_SAMPLES)
            left = math.exp2(-self.unseen)
            for each, usual in (self.decode, model.newcomer.decode), (self.prefill, model.newcomer.prefill):
                each.value = usual.value * math.pow(each.seen_value / usual.value, left)
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


def _halfway(values: Iterable[float]) -> float:
    """The median; of an even number halfway between two."""
    return math.exp(median(map(math.log, values)))
