"""The tuner for live traffic: it tries other weights for a while and keeps them if they were certainly better.

    warm-up -> incumbent -> candidate -> incumbent -> candidate ... each measured over a window of its own

A candidate is compared with the incumbent's windows before and after it, so that a steady drift of the traffic cancels.
Lengths of prompts and answers are first made equal, where they are known (`fair`). The noise is learned from the
incumbent's own windows; a candidate gets more rounds until these and earlier trials (`surface`) show beyond that noise
whether it is better. It is abandoned at once when its p95 is certain to exceed the guard; accepted weights that exceed
it later are replaced by those of the configuration. When steps have become too small to matter the weights are frozen,
and they thaw when the traffic has changed. No I/O and no clock of its own. Source: GORGO's tuner, with its seven faults
fixed; `docs/tune.md` lists them.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Final, Literal

import msgspec

from fairlead.core.policy import Decision, Outcome, Policy
from fairlead.tuning.evidence import Evidence, Noise, clipped_log_ratio, fair_p95s_ms, log_ratio
from fairlead.tuning.search import Search
from fairlead.tuning.weights import Box, Weights, weights_of, with_weights
from fairlead.tuning.window import NO_LIMITS, Limits, Measure, Window

KEPT_TRIALS: Final = 200
_EXPECTED_NOISE: Final = 0.1  # in the logarithm of a window's p95, until the incumbent's own windows show it
_EXPECTED_SEEN_NOISE: Final = 0.2  # without equal lengths, as the guard sees it
_HELD_TO: Final = 9  # windows of an incumbent, whose median is its standard
_LEAST_ROUNDS: Final = 2  # before a candidate is accepted: one may be a burst
_STRIKES: Final = 2  # windows in a row beyond the guard before an incumbent is replaced: one may be a burst
_BEYOND_NOISE: Final = 3.0  # standard deviations: below it even a crossed guard is noise

Verdict = Literal["accepted", "rejected", "first_token", "guard", "rolled_back"]
State = Literal["warming", "tuning", "frozen"]


class TunerSettings(msgspec.Struct, frozen=True):
    """How much evidence a change needs."""

    window: int = 64  # requests that are scored
    wash_out: int = 16  # requests not scored after a change of weights: queues and caches still reflect the old weights
    warm_up: int = 256  # requests before the first window: caches are cold
    tolerance: float = 0.02  # a smaller gain of p95, as a share, counts as none
    confidence: float = (
        1.64  # standard errors that a gain must exceed: by chance alone one in twenty would, in a single test
    )
    most_rounds: int = 4  # a candidate not certainly better by then is rejected
    guard: float = 1.5  # times the p95 to compare with, of time to the end or to the first token
    first_token_tolerance: float = 0.1  # by which share all changes together may raise p95 time to the first token
    patience_s: float = 60.0  # how long a window waits for its requests to end
    stale_s: float = 3600.0  # older measurements are not used for comparison


class Trial(msgspec.Struct, frozen=True):
    """One proposal and its outcome. `gain` is the mean of the differences of log p95: above 0 is better."""

    number: int
    decided: int  # requests decided so far
    at_s: float
    candidate: Weights
    incumbent: Weights
    rounds: int
    gain: float | None  # by its own rounds; None: no round was completed
    gain_error: float | None  # its standard error
    expected_gain: float | None  # after earlier trials and these rounds; the verdict is based on it
    expected_error: float | None
    p95_ms: float | None  # in the candidate's last window
    incumbent_p95_ms: float | None
    first_token_p95_ms: float | None
    incumbent_first_token_p95_ms: float | None
    step: float
    verdict: Verdict


class OnlineTuner:
    """A `core.feedback.Tuner` of one policy's weights.

    With `apply` false it changes no routing: candidates are measured under the incumbent's weights, so what it would
    have accepted shows the effect of noise alone.
    """

    def __init__(self, policy: Policy, box: Box, rng: Random, settings: TunerSettings, *, apply: bool = True) -> None:
        self.configured: Weights = weights_of(policy, box)
        self.state: State = "warming"
        self.trials: deque[Trial] = deque(maxlen=KEPT_TRIALS)
        self.verdicts: Counter[Verdict] = Counter()
        self._policy = policy
        self._search = Search(self.configured, box, rng)
        self._settings = settings
        self.applies = apply
        self._measuring: Weights = self.configured
        self._window: Window | None = None
        self._trial: Evidence | None = None  # the trial of the current candidate, over one or more rounds
        self._candidate_measure: Measure | None = None  # in the current round
        self._first_token_loss = 0.0  # in the logarithm of p95, by all weights accepted since the configured ones
        self._incumbent_measures: deque[Measure] = deque(maxlen=_HELD_TO)
        self._configured_measures: Sequence[Measure] = ()  # under the configured weights, before others were accepted
        self._strikes = 0
        self._frozen_by_hand = False
        self._noise, self._seen_noise = Noise(_EXPECTED_NOISE), Noise(_EXPECTED_SEEN_NOISE)

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
        return self._trial.candidate if self._trial is not None else None

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of a window's p95, as the incumbent's windows show it."""
        return self._noise.deviation

    def freeze(self) -> None:
        """Try nothing new until `thaw`: the incumbent stays in force, measured and guarded."""
        self.state = "frozen"
        self._frozen_by_hand = True

    def thaw(self) -> None:
        """Search again around the incumbent, with large steps."""
        self._search.restart(self.incumbent)
        self.state = "tuning"
        self._frozen_by_hand = False

    def observe(self, decision: Decision, outcome: Outcome, decided: int, now_s: float) -> Policy | None:
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
        elif self.state == "frozen" and self._trying is not None:
            self._trial = None
            self._begin(self.incumbent, decided)
        if self._measuring == before or not self.applies:
            return None
        return with_weights(self._policy, self._measuring)

    @property
    def _trying(self) -> Evidence | None:
        """The trial whose candidate is in force."""
        return self._trial if self.candidate == self._measuring else None

    def _measured(self, measure: Measure | None, decided: int, now_s: float) -> None:
        """Handle a complete window. A measure of None is useless: the window starts again."""
        if measure is None:
            self._begin(self._measuring, decided)
        elif self._trying is not None:
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
            if tried is not None and self._trial is not None and self.state != "frozen":
                self._trial.add((before, tried, after))
                self._judge(self._trial, decided, now_s, tried)
        if self.state == "frozen" or self._search.converged:
            self.state = "frozen"
            self._trial = None
        elif self._trial is None:
            candidate = self._search.propose()
            self._trial = Evidence(candidate, self._search.expected(candidate))
        known = self._trial is not None and measures  # else the incumbent is new, or nothing is being tried
        self._begin(self._trial.candidate if known and self._trial is not None else self.incumbent, decided)

    def _judge(self, trial: Evidence, decided: int, now_s: float, tried: Measure) -> None:
        """One more round is complete: accept the candidate, reject it, or run another round."""
        gain, error = trial.expected(self._noise)
        sure = trial.rounds >= _LEAST_ROUNDS and gain > self._settings.confidence * error
        if sure and gain > self._settings.tolerance:
            loss = self._first_token_loss - trial.first_token_gain
            later = loss > math.log1p(self._settings.first_token_tolerance)
            if not later:
                self._first_token_loss = max(0.0, loss)
            self._close("first_token" if later else "accepted", trial, decided, now_s, tried)
        elif gain <= self._settings.tolerance or trial.rounds == self._settings.most_rounds:
            self._close("rejected", trial, decided, now_s, tried)

    def _close(
        self, verdict: Verdict, trial: Evidence, decided: int, now_s: float, tried: Measure | None = None
    ) -> None:
        """The candidate's trial ends."""
        self._note(verdict, trial.candidate, decided, now_s, trial, tried)
        if trial.rounds:
            gain = min(trial.gain, trial.first_token_gain) if verdict == "first_token" else trial.gain
            self._search.learn(trial.candidate, gain, trial.error(self._noise))
        if verdict == "accepted" and self.applies:
            if self.incumbent == self.configured:
                self._configured_measures = tuple(self._incumbent_measures)
            self._search.accept(trial.candidate)
            self._incumbent_measures.clear()
            if tried is not None:
                self._incumbent_measures.append(tried)
        else:
            self._search.reject()
        self._trial = None

    def _guard_crossed(self, decided: int, now_s: float) -> None:
        """The window's p95 is certain to exceed the guard, under a candidate or under weights accepted earlier."""
        trial = self._trying
        if trial is not None:
            loss = math.log(self._guard())  # at least this much, unless it was a burst
            self._search.learn(trial.candidate, -loss, loss / 2)
            self._close("guard", trial, decided, now_s)
        else:
            self._strikes += 1
            self._candidate_measure = None
        if self._strikes == _STRIKES:
            self._strikes = 0
            self._note("rolled_back", self.configured, decided, now_s)
            self._search.restart(self.configured)
            self._first_token_loss = 0.0
            self._trial = None
            self._forget()
            self.state = "frozen" if self._frozen_by_hand else "tuning"
        self._begin(self.incumbent, decided)

    def _begin(self, weights: Weights, decided: int) -> None:
        """Put `weights` in force and measure them next."""
        wash_out = self._settings.wash_out if weights != self._measuring else 0
        self._measuring = weights
        limits = self._limits() if self._trying is not None or weights != self.configured else NO_LIMITS
        self._window = Window(decided + 1 + wash_out, self._settings.window, limits)

    def _limits(self) -> Limits:
        """Limits for all weights: the guard times the median of the incumbent's windows.

        If the load rises, a candidate may be as slow as the incumbent was just now; and accepted weights need not give
        way to configured ones that were slower themselves.
        """
        measures = self._incumbent_measures
        if not measures:
            return NO_LIMITS
        also = [measures[-1]] if self._trying is not None else self._configured_measures
        guard = self._guard()
        return Limits(
            guard * max(_usual_ms([m.p95_ms for m in each]) for each in (measures, also)),
            guard * max(_usual_ms([m.first_token_p95_ms for m in each]) for each in (measures, also)),
        )

    def _guard(self) -> float:
        return max(self._settings.guard, math.exp(_BEYOND_NOISE * self._seen_noise.deviation))

    def _changed(self, measure: Measure) -> bool:
        """Whether the traffic differs from that under which the incumbent was frozen."""
        usual_ms = median(m.p95_ms for m in self._incumbent_measures)
        return abs(log_ratio(measure.p95_ms, usual_ms)) > math.log(self._guard())

    def _forget(self) -> None:
        """Traffic or weights have changed: drop the measurements, which are no longer valid."""
        self._incumbent_measures.clear()
        self._noise, self._seen_noise = Noise(_EXPECTED_NOISE), Noise(_EXPECTED_SEEN_NOISE)

    def _learn_noise(self, before: Measure, after: Measure) -> None:
        self._noise.add(clipped_log_ratio(*fair_p95s_ms((after, before))))
        self._seen_noise.add(clipped_log_ratio(after.p95_ms, before.p95_ms))

    def _note(
        self,
        verdict: Verdict,
        candidate: Weights,
        decided: int,
        now_s: float,
        trial: Evidence | None = None,
        tried: Measure | None = None,
    ) -> None:
        self.verdicts[verdict] += 1
        held_to = self._incumbent_measures[-1] if self._incumbent_measures else None
        shown = trial if trial is not None and trial.rounds else None
        expected = shown.expected(self._noise) if shown is not None else None
        self.trials.append(
            Trial(
                number=self.verdicts.total(),
                decided=decided,
                at_s=now_s,
                candidate=candidate,
                incumbent=self.incumbent,
                rounds=shown.rounds if shown is not None else 0,
                gain=shown.gain if shown is not None else None,
                gain_error=shown.error(self._noise) if shown is not None else None,
                expected_gain=expected.gain if expected is not None else None,
                expected_error=expected.error if expected is not None else None,
                p95_ms=tried.p95_ms if tried is not None else None,
                incumbent_p95_ms=held_to.p95_ms if held_to is not None else None,
                first_token_p95_ms=tried.first_token_p95_ms if tried is not None else None,
                incumbent_first_token_p95_ms=held_to.first_token_p95_ms if held_to is not None else None,
                step=self._search.step,
                verdict=verdict,
            )
        )


def _usual_ms(times_ms: Sequence[float | None]) -> float:
    """The median of the known times; infinite if none is known."""
    known = [each for each in times_ms if each is not None]
    return median(known) if known else math.inf
