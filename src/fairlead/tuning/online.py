"""The tuner for traffic as it comes: other weights are tried for a while, and kept if they were better for sure.

    warm-up -> incumbent -> candidate -> incumbent -> candidate ... each measured over a window of its own

A candidate is compared with the incumbent's windows before and after it, so that a steady drift of the traffic cancels.
Lengths of prompts and answers are made equal first, where they are known (`fair`).
The noise is learned from the incumbent's own windows; a candidate is tried again until it is better or not beyond that
noise. It is given up at once when its p95 is certain to pass the guard; weights that were accepted and pass it later
give way to those of the configuration. When steps have become too small to matter the weights are frozen, and they thaw
when the traffic has changed. No I/O and no clock of its own. Source: GORGO's tuner, with its seven faults mended;
`docs/tune.md` tells which and how.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from random import Random
from statistics import fmean, median
from typing import Final, Literal

import msgspec

from fairlead.core.evolution import Box, Weights
from fairlead.core.feedback import Outcome
from fairlead.core.ranking import Policy
from fairlead.core.router import Decision
from fairlead.tuning.fair import p95s_ms
from fairlead.tuning.search import Search
from fairlead.tuning.weights import weights_of, with_weights
from fairlead.tuning.window import NO_LIMITS, Limits, Measure, Window

KEPT_TRIALS: Final = 200
_EXPECTED_NOISE: Final = 0.1  # of the logarithm of a window's p95, until the incumbent's own windows have shown it
_EXPECTED_SEEN_NOISE: Final = 0.2  # with lengths as they came, which is what the guard looks at
_HELD_TO: Final = 9  # windows of an incumbent, whose median it is held to
_STRIKES: Final = 2  # windows in a row beyond the guard, before an incumbent gives way: one may be a burst
_BEYOND_NOISE: Final = 3.0  # standard deviations: below it even a passed guard says nothing
_NOISE_KEPT: Final = 0.9  # of what is known of the noise, at each further pair: traffic changes
_CLIPPED: Final = 1.0  # of a difference of logarithms: one infinite p95 must not decide for all rounds

Verdict = Literal["accepted", "rejected", "first_token", "guard", "rolled_back"]
State = Literal["warming", "tuning", "frozen"]


class TunerSettings(msgspec.Struct, frozen=True):
    """How much evidence a change needs."""

    window: int = 64  # requests that are scored
    wash_out: int = 16  # requests after a change of weights that are not: queues and caches are still the old weights'
    warm_up: int = 256  # requests before the first window: caches are cold
    tolerance: float = 0.02  # a gain of p95 smaller than this share is none
    confidence: float = 1.64  # standard errors that a gain must exceed: one in twenty by chance alone, were it one look
    most_rounds: int = 4  # a candidate that is then still not certainly better is rejected
    guard: float = 1.5  # times the p95 to compare with, of time to the end or to the first token
    first_token_tolerance: float = 0.1  # share of p95 time to the first token that all changes together may cost
    patience_s: float = 60.0  # for the requests of a window that have not ended
    stale_s: float = 3600.0  # an older measure is no comparison


class Trial(msgspec.Struct, frozen=True):
    """One proposal and what became of it. `gain` is the mean of the differences of log p95: above 0 is better."""

    number: int
    decided: int  # requests decided so far
    at_s: float
    candidate: Weights
    incumbent: Weights
    rounds: int
    gain: float | None  # None: no window was completed
    gain_error: float | None  # its standard error
    p95_ms: float | None  # of the candidate's last window
    incumbent_p95_ms: float | None
    first_token_p95_ms: float | None
    incumbent_first_token_p95_ms: float | None
    step: float
    verdict: Verdict


class _Noise:
    """How far two windows under the same weights are apart, as the standard deviation of one; the latest count most."""

    def __init__(self, expected: float) -> None:
        self._sum, self._weight = expected**2, 1.0

    @property
    def deviation(self) -> float:
        return math.sqrt(self._sum / self._weight)

    def add(self, difference: float) -> None:
        self._sum = self._sum * _NOISE_KEPT + difference**2 / 2  # each of the two has its noise
        self._weight = self._weight * _NOISE_KEPT + 1.0


class OnlineTuner:
    """A `core.feedback.Tuner` of one policy's weights.

    With `apply` false it routes nothing differently: candidates are then measured under the incumbent's weights, and
    what it would have accepted shows what noise alone can do.
    """

    def __init__(self, policy: Policy, box: Box, rng: Random, settings: TunerSettings, *, apply: bool = True) -> None:
        self.home: Weights = weights_of(policy, box)
        self.state: State = "warming"
        self.trials: deque[Trial] = deque(maxlen=KEPT_TRIALS)
        self.verdicts: Counter[Verdict] = Counter()
        self._policy = policy
        self._search = Search(self.home, box, rng)
        self._settings = settings
        self.applies = apply
        self._measuring: Weights = self.home
        self._window: Window | None = None
        self._candidate: Weights | None = None  # being tried, over one round or several
        self._candidate_measure: Measure | None = None  # of the round under way
        self._gains: list[float] = []  # one a round
        self._first_token_gains: list[float] = []
        self._first_token_loss = 0.0  # of the logarithm of p95, by all that was accepted since the configured weights
        self._incumbent_measures: deque[Measure] = deque(maxlen=_HELD_TO)
        self._strikes = 0
        self._frozen_by_hand = False
        self._noise, self._seen_noise = _Noise(_EXPECTED_NOISE), _Noise(_EXPECTED_SEEN_NOISE)

    @property
    def incumbent(self) -> Weights:
        """The best weights known: in force unless others are being tried."""
        return self._search.incumbent

    @property
    def incumbent_p95_ms(self) -> float | None:
        """End to end, in the incumbent's last window."""
        return self._incumbent_measures[-1].p95_ms if self._incumbent_measures else None

    @property
    def candidate(self) -> Weights | None:
        return self._candidate

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of a window's p95, as the incumbent's windows show it."""
        return self._noise.deviation

    def freeze(self) -> None:
        """Try nothing more until `thaw`: the incumbent stays in force, measured and guarded."""
        self.state = "frozen"
        self._frozen_by_hand = True

    def thaw(self) -> None:
        """Search again around the incumbent, with large steps."""
        self._search.restart(self.incumbent)
        self.state = "tuning"
        self._frozen_by_hand = False

    def heard(self, decision: Decision, outcome: Outcome, decided: int, now_s: float) -> Policy | None:
        before, window = self._measuring, self._window
        if window is None:
            self._window = Window(decided + 1 + self._settings.warm_up, self._settings.window)
            return None
        window.add(decision, outcome)
        full = window.full(decided, now_s, self._settings.patience_s)
        if window.beyond_limits(full=full):
            self._guard_crossed(decided, now_s)
        elif full:
            self._measured(window.measure(now_s), decided, now_s)
        elif self.state == "frozen" and self._trying:
            self._candidate = None
            self._begin(self.incumbent, decided)
        if self._measuring == before or not self.applies:
            return None
        return with_weights(self._policy, self._measuring)

    @property
    def _trying(self) -> bool:
        return self._candidate is not None and self._measuring == self._candidate

    def _measured(self, measure: Measure | None, decided: int, now_s: float) -> None:
        """A window is complete; None if it says nothing, and then it begins again."""
        if measure is None:
            self._begin(self._measuring, decided)
        elif self._trying:
            self._candidate_measure = measure
            self._begin(self.incumbent, decided)
        else:
            self._incumbent_measured(measure, decided, now_s)

    def _incumbent_measured(self, after: Measure, decided: int, now_s: float) -> None:
        measures = self._incumbent_measures
        before = measures[-1] if measures else None
        tried, self._candidate_measure = self._candidate_measure, None
        if self.state == "warming":
            self.state = "tuning"
        elif self.state == "frozen" and not self._frozen_by_hand and before is not None and self._changed(after):
            self._forget()
            self.thaw()
            before = None
        measures.append(after)
        self._strikes = 0
        if before is not None and now_s - before.closed_s <= self._settings.stale_s:
            self._learn_noise(before, after)
            if tried is not None and self._candidate is not None:
                self._judge(self._candidate, (before, tried, after), decided, now_s)
        if self.state == "frozen" or self._search.converged:
            self.state = "frozen"
            self._candidate = None
        elif self._candidate is None:
            self._candidate = self._search.propose()
            self._gains, self._first_token_gains = [], []
        known = self._candidate is not None and measures  # else the incumbent is new, or there is nothing to try
        self._begin(self._candidate if known and self._candidate is not None else self.incumbent, decided)

    def _judge(
        self, candidate: Weights, measures: tuple[Measure, Measure, Measure], decided: int, now_s: float
    ) -> None:
        """One more round is complete: take the candidate, leave it, or let it be tried again."""
        _, tried, _ = measures
        self._gains.append(_gain(*_p95s_ms(measures)))
        seen = [m.first_token_p95_ms for m in measures if m.first_token_p95_ms is not None]
        if len(seen) == len(measures):
            self._first_token_gains.append(_gain(*seen))
        gain, rounds = fmean(self._gains), len(self._gains)
        if gain > max(self._settings.confidence * self._error(rounds), self._settings.tolerance):
            loss = self._first_token_loss - (fmean(self._first_token_gains) if self._first_token_gains else 0.0)
            later = loss > math.log1p(self._settings.first_token_tolerance)
            if not later:
                self._first_token_loss = max(0.0, loss)
            self._close("first_token" if later else "accepted", candidate, decided, now_s, tried)
        elif gain <= self._settings.tolerance or rounds == self._settings.most_rounds:
            self._close("rejected", candidate, decided, now_s, tried)

    def _close(
        self, verdict: Verdict, candidate: Weights, decided: int, now_s: float, tried: Measure | None = None
    ) -> None:
        """The candidate's trial ends."""
        self._note(verdict, candidate, decided, now_s, tried)
        if verdict == "accepted" and self.applies:
            self._search.accept(candidate)
            self._incumbent_measures.clear()
            if tried is not None:
                self._incumbent_measures.append(tried)
        else:
            self._search.reject()
        self._candidate = None

    def _guard_crossed(self, decided: int, now_s: float) -> None:
        """The p95 of the window is certain to pass the guard: the candidate's, or that of weights accepted earlier."""
        if self._trying:
            self._close("guard", self._measuring, decided, now_s)
        else:
            self._strikes += 1
            self._candidate_measure = None
        if self._strikes == _STRIKES:
            self._strikes = 0
            self._note("rolled_back", self.home, decided, now_s)
            self._search.restart(self.home)
            self._first_token_loss = 0.0
            self._candidate = None
            self._forget()
            self.state = "frozen" if self._frozen_by_hand else "tuning"
        self._begin(self.incumbent, decided)

    def _begin(self, weights: Weights, decided: int) -> None:
        """Put `weights` in force and measure them next."""
        wash_out = self._settings.wash_out if weights != self._measuring else 0
        self._measuring = weights
        limits = self._limits() if self._trying or weights != self.home else NO_LIMITS
        self._window = Window(decided + 1 + wash_out, self._settings.window, limits)

    def _limits(self) -> Limits:
        """What no weights may pass: the guard over what the incumbent's windows were."""
        measures = self._incumbent_measures
        if not measures:
            return NO_LIMITS
        first_tokens = [m.first_token_p95_ms for m in measures if m.first_token_p95_ms is not None]
        first_token_ms = median(first_tokens) if first_tokens else math.inf
        guard = self._guard()
        return Limits(guard * median(m.p95_ms for m in measures), guard * first_token_ms)

    def _guard(self) -> float:
        return max(self._settings.guard, math.exp(_BEYOND_NOISE * self._seen_noise.deviation))

    def _changed(self, measure: Measure) -> bool:
        """The traffic is not the one that the incumbent was frozen under."""
        usual_ms = median(m.p95_ms for m in self._incumbent_measures)
        return abs(_log_ratio(measure.p95_ms, usual_ms)) > math.log(self._guard())

    def _forget(self) -> None:
        """The traffic is another now, or the weights are: what windows came to says nothing any more."""
        self._incumbent_measures.clear()
        self._noise, self._seen_noise = _Noise(_EXPECTED_NOISE), _Noise(_EXPECTED_SEEN_NOISE)

    def _learn_noise(self, before: Measure, after: Measure) -> None:
        self._noise.add(_clipped_log_ratio(*_p95s_ms((after, before))))
        self._seen_noise.add(_clipped_log_ratio(after.p95_ms, before.p95_ms))

    def _error(self, rounds: int) -> float:
        """Standard error of the mean gain: a candidate's window against the mean of two of the incumbent's."""
        return self.noise * math.sqrt(1.5 / rounds)

    def _note(
        self, verdict: Verdict, candidate: Weights, decided: int, now_s: float, tried: Measure | None = None
    ) -> None:
        self.verdicts[verdict] += 1
        held_to = self._incumbent_measures[-1] if self._incumbent_measures else None
        rounds = len(self._gains)
        trial = Trial(
            number=self.verdicts.total(),
            decided=decided,
            at_s=now_s,
            candidate=candidate,
            incumbent=self.incumbent,
            rounds=rounds,
            gain=fmean(self._gains) if rounds else None,
            gain_error=self._error(rounds) if rounds else None,
            p95_ms=tried.p95_ms if tried is not None else None,
            incumbent_p95_ms=held_to.p95_ms if held_to is not None else None,
            first_token_p95_ms=tried.first_token_p95_ms if tried is not None else None,
            incumbent_first_token_p95_ms=held_to.first_token_p95_ms if held_to is not None else None,
            step=self._search.step,
            verdict=verdict,
        )
        self.trials.append(trial)


def _p95s_ms(measures: Sequence[Measure]) -> Sequence[float]:
    """Of time to the end; with equal lengths of prompts and answers where they are known."""
    fair = p95s_ms([measure.sample for measure in measures])
    return [measure.p95_ms for measure in measures] if fair is None else fair


def _gain(before_ms: float, tried_ms: float, after_ms: float) -> float:
    """How much smaller than the mean of its neighbours, in logarithms."""
    return (_clipped_log_ratio(before_ms, tried_ms) + _clipped_log_ratio(after_ms, tried_ms)) / 2


def _clipped_log_ratio(above_ms: float, below_ms: float) -> float:
    return max(-_CLIPPED, min(_CLIPPED, _log_ratio(above_ms, below_ms)))


def _log_ratio(above_ms: float, below_ms: float) -> float:
    """log(above / below), of times that may be 0 or infinite; equal ones are equal."""
    if above_ms == below_ms:
        return 0.0
    if above_ms == 0.0 or below_ms == math.inf:
        return -math.inf
    return math.log(above_ms / below_ms) if below_ms > 0.0 else math.inf
