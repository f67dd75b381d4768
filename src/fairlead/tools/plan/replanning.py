"""Planning again while a cascade serves: what is observed, what has moved, and how a new plan is put in force.

This runs in a process separate from the sidecars, as planning takes seconds of CPU. Thresholds go into the sidecars'
configurations, which are applied at once; GPUs are advice for an operator.

A plan is made from what was sampled after the traffic moved, and from nothing before it. Few samples flatter the
thresholds that are best on them, so a plan is made again as samples double, and whenever the quality that comes is not
the quality that was claimed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import yaml

from fairlead.cascade.rows import ProfileRow, read_rows
from fairlead.config import parse
from fairlead.errors import UserError
from fairlead.files import replace_file
from fairlead.tools.plan.drift import RATE, DriftDetector, traffic
from fairlead.tools.plan.make import make_plan
from fairlead.tools.plan.plan import Plan
from fairlead.tools.plan.sample import make_profile
from fairlead.tools.plan.search import Aim
from fairlead.tools.plan.settings import CascadeSettings

FEWEST_REQUESTS = 40  # sampled since the traffic moved, before a plan is made for it
MOST_REQUESTS = 1600  # the newest of them are planned from
_MOST_WINDOWS = 200  # kept
_QUALITY_MARGIN = 1.0  # points by which the quality may miss the claim, besides chance
_STANDARD_ERRORS = 3.0  # each run of the newest windows is looked at
_SHORT_STANDARD_ERRORS = 2.5  # below the quality asked for, which is known exactly and is what a shortfall costs
_JUDGED_REQUESTS = 400  # sampled, to plan again for a shortfall: a plan from fewer may miss by as much
_LOOKED_BACK = 50  # windows
_ACCEPTED = re.compile(r'^fairlead_cascade_accepted_total\{.*?route="((?:[^"\\]|\\.)*)".*\}\s+(\S+)$', re.MULTILINE)
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Replanned:
    thresholds: Plan  # for the existing replicas, if the settings name them
    allocation: Plan  # for all GPUs


@dataclass(frozen=True, slots=True)
class Window:
    """What was observed in some seconds: the rate, None if no sidecar answered, and rows of all models for a sample."""

    seconds: float
    rate_per_s: float | None
    rows: Sequence[ProfileRow]


@dataclass(frozen=True, slots=True)
class Claim:
    """What the thresholds in force are said to give."""

    thresholds: Sequence[float]
    quality: float
    error: float


class Replanner:
    """Plans for one route. `seen` takes each window and returns why a new plan is due; `plan` makes it."""

    def __init__(self, settings: CascadeSettings, aim: Aim, profile: Sequence[ProfileRow]) -> None:
        self._settings = settings
        self._aim = aim
        self._models = [model.name for model in settings.models]
        self._profile = profile
        self._detector = self._planned_for(profile, settings.rate_per_s)
        self._windows: list[Window] = []  # since the traffic that the present plan is for began
        self._claimed: Claim | None = None
        self._planned_requests = 0  # sampled requests that it was made from
        self._planned_windows = 0  # windows before it

    def follow(self, thresholds: Sequence[float]) -> None:
        """These are in force, and are held to what they give on the profile."""
        qualities = accepted_quality(self._profile, self._models, thresholds)
        if len(qualities) > 1:
            error = float(np.std(qualities, ddof=1)) / len(qualities) ** 0.5
            self._claimed = Claim(tuple(thresholds), float(np.mean(qualities)), error)
            self._planned_requests = MOST_REQUESTS

    def seen(self, window: Window) -> list[str]:
        """Why a new plan is due; nothing while too few requests of the new traffic have been sampled."""
        self._windows.append(window)
        if len(self._windows) > _MOST_WINDOWS:
            del self._windows[0]
            self._planned_windows = max(0, self._planned_windows - 1)
        requests = round((window.rate_per_s or 0.0) * window.seconds)
        now = traffic(window.rows, self._models, requests, window.seconds)
        if window.rate_per_s is None:
            del now[RATE]
        reasons = self._detector.seen(now)
        if reasons:
            # The traffic may have moved in the middle of the first window that differs: it is left out.
            self._windows = self._windows[-max(1, self._detector.moved_windows - 1) :]
            self._claimed = None
        elif self._claimed is not None:
            reasons = self._doubts(self._claimed)
        else:
            del self._windows[: -max(1, self._detector.moved_windows)]
        return reasons if self._sampled_requests() >= FEWEST_REQUESTS else []

    def plan(self) -> Replanned:
        """A plan for the traffic since it moved, for all models, since the route has to keep them.

        Raises UserError if no plan reaches the aim.
        """
        rows = self._rows(self._windows)
        counted = [window for window in self._windows if window.rate_per_s]
        seconds = sum(window.seconds for window in counted)
        if not counted:
            raise UserError("no sidecar has said how many requests there are")
        rate_per_s = sum(window.seconds * (window.rate_per_s or 0.0) for window in counted) / seconds
        settings = self._settings.model_copy(update={"rate_per_s": rate_per_s})
        newest = _newest(rows, MOST_REQUESTS)
        profile = make_profile(newest, self._models, "the sample")
        allocation = make_plan(settings, profile, self._aim, whole=True).plan
        thresholds = allocation
        if all(model.replicas for model in settings.models):
            thresholds = make_plan(settings, profile, self._aim, fixed_deployment=True, whole=True).plan
        self._detector = self._planned_for(newest, rate_per_s)
        self._claimed = Claim(thresholds.thresholds, thresholds.quality, thresholds.quality_error)
        self._planned_requests = self._sampled_requests()
        self._planned_windows = len(self._windows)
        return Replanned(thresholds, allocation)

    def _doubts(self, claim: Claim) -> list[str]:
        """Why the plan in force is not to be relied on: what came after it, or how little it was made from.

        Where the newest windows differ from what was claimed, or fall short of what was asked for, it is they that the
        next plan is made from.
        """
        after = self._windows[self._planned_windows :][-_LOOKED_BACK:]
        asked = self._aim.least_quality if self._aim.least_quality is not None else -float("inf")
        came: list[float] = []
        most, since, reason = 1.0, 0, ""
        for number, window in enumerate(reversed(after), 1):
            came += accepted_quality(window.rows, self._models, claim.thresholds)
            if len(came) < FEWEST_REQUESTS // 2:
                continue
            variance, mean = max(float(np.var(came, ddof=1)) / len(came), 1e-18), float(np.mean(came))
            error = (variance + claim.error**2) ** 0.5
            by = (abs(mean - claim.quality) - _QUALITY_MARGIN) / error / _STANDARD_ERRORS
            if by > most:
                most, since, reason = by, number, f"quality: {claim.quality:.4g} was claimed, {mean:.4g} came"
            short = (asked - mean) / variance**0.5 / _SHORT_STANDARD_ERRORS
            if short > most and len(came) >= _JUDGED_REQUESTS and claim.quality >= asked:
                most, since, reason = short, number, f"quality: {asked:.4g} was asked for, {mean:.4g} came"
        if since:
            self._windows, self._planned_windows = self._windows[-since:], 0
            return [reason]
        requests = self._sampled_requests()
        if self._planned_requests < MOST_REQUESTS and requests >= 2 * self._planned_requests:
            return [f"sampled requests: {self._planned_requests} -> {requests}"]
        return []

    def _rows(self, windows: Sequence[Window]) -> list[ProfileRow]:
        return [row for window in windows for row in window.rows]

    def _sampled_requests(self) -> int:
        return len(_by_request(self._rows(self._windows), self._models))

    def _planned_for(self, rows: Sequence[ProfileRow], rate_per_s: float) -> DriftDetector:
        planned = traffic(rows, self._models, int(rate_per_s * _HOUR_S), _HOUR_S)
        return DriftDetector({**planned, RATE: replace(planned[RATE], mean=rate_per_s)})


def accepted_quality(rows: Sequence[ProfileRow], models: Sequence[str], thresholds: Sequence[float]) -> list[float]:
    """The quality of the answer that a cascade with these thresholds accepts, for each request that all models have
    answered.
    """
    found = []
    for answers in _by_request(rows, models):
        row = answers[-1]
        for answer, threshold in zip(answers, thresholds, strict=False):
            if answer.score >= threshold:
                row = answer
                break
        found.append(row.score if row.quality is None else row.quality)
    return found


def _by_request(rows: Sequence[ProfileRow], models: Sequence[str]) -> list[list[ProfileRow]]:
    answers: dict[str, dict[str, ProfileRow]] = {}
    for row in rows:
        answers.setdefault(row.request, {})[row.model] = row
    return [[each[model] for model in models] for each in answers.values() if all(model in each for model in models)]


def _newest(rows: Sequence[ProfileRow], requests: int) -> list[ProfileRow]:
    names = dict.fromkeys(row.request for row in reversed(rows))
    kept = set(list(names)[:requests])
    return [row for row in rows if row.request in kept]


def sampled(path: Path, since_s: float) -> list[ProfileRow]:
    """Rows that a sidecar sampled since the Unix time `since_s`, which request names contain. Raises UserError."""
    files = [each for each in (path.with_name(f"{path.name}.1"), path) if each.exists()]
    return [row for file in files for row in read_rows(file) if _time_s(row.request) >= since_s]


def _time_s(request: str) -> float:
    try:
        return float(request)
    except ValueError:
        return 0.0


def accepted(metrics_text: str, route: str) -> int:
    """Requests that the route has answered since the sidecar started, from its metrics page."""
    return sum(int(float(value)) for name, value in _ACCEPTED.findall(metrics_text) if name == route)


def put_in_force(config_path: Path, route: str, thresholds: Sequence[float]) -> None:
    """Write the thresholds into the configuration; nothing else of the file changes. Raises UserError."""
    text = config_path.read_text(encoding="utf-8")
    parse(text, str(config_path))
    changed = with_thresholds(text, route, thresholds)
    parse(changed, str(config_path))
    replace_file(config_path, changed.encode())


def with_thresholds(text: str, route: str, thresholds: Sequence[float]) -> str:
    """Raises UserError if the configuration `text` has no cascade of that name."""
    node, name = yaml.compose(text, Loader=yaml.SafeLoader), None
    for key in ("routes", route, "thresholds"):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        name, node = next((pair for pair in pairs if pair[0].value == key), (None, None))
    if node is None or name is None:
        raise UserError(f"routes.{route} is not a cascade with thresholds; name one with --route")
    written = ", ".join(map(exactly, thresholds))
    end = node.end_mark.index
    if not text[:end].endswith("]"):  # a block sequence ends where the next key begins
        end = len(text[:end].rstrip())
    return f"{text[: name.end_mark.index]}: [{written}]{text[end:]}"


def exactly(number: float) -> str:
    """A number as YAML reads it back, to the last digit: a score may be equal to a threshold."""
    short = f"{number:g}"
    return short if float(short) == number and "e" not in short else f"{Decimal(repr(number)):f}"


def advice(plan: Plan) -> str:
    """Replica counts for Kubernetes: one deployment for each model and shape of replica."""
    deployments = [
        {
            "name": f"{re.sub(r'[^a-z0-9-]+', '-', stage.model.lower()).strip('-')}-tp{shape.tp}-pp{shape.pp}",
            "model": stage.model,
            "replicas": count,
            "gpus_per_replica": shape.gpus,
            "tensor_parallel_size": shape.tp,
            "pipeline_parallel_size": shape.pp,
        }
        for stage in plan.stages
        for shape, count in stage.strategy
    ]
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    heading = f"# Advice of {made} for {plan.rate_per_s:g} requests a second: {plan.objective}.\n"
    heading += "# For each: kubectl scale deployment/<name> --replicas=<replicas>\n"
    return heading + yaml.safe_dump({"deployments": deployments}, sort_keys=False)
