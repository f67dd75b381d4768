"""Planning again while a cascade serves: what is observed, what has moved, and how a new plan is put in force.

This runs beside the sidecar, in a process of its own: planning takes seconds of a core. Thresholds go into the
sidecar's configuration, which it puts in force all at once; GPUs are advice, for whoever may move replicas.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import httpx
import yaml

from fairlead.cascade.planner.make import make_plan
from fairlead.cascade.planner.plan import Plan
from fairlead.cascade.planner.plan_file import write_plan
from fairlead.cascade.planner.sample import make_profile
from fairlead.cascade.planner.search import Aim
from fairlead.cascade.planner.settings import CascadeSettings
from fairlead.cascade.planner.shift import RATE, ShiftDetector, traffic
from fairlead.cascade.rows import ProfileRow, read_rows
from fairlead.config import load, parse
from fairlead.errors import UserError
from fairlead.files import replace_file

_PLANNED_REQUESTS = 400  # the newest of the sample, that a new plan is made from
_ACCEPTED = re.compile(r'^fairlead_cascade_accepted_total\{.*?route="((?:[^"\\]|\\.)*)".*\}\s+(\S+)$', re.MULTILINE)
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Replanned:
    thresholds: Plan  # for the replicas that are there, where the settings name them
    allocation: Plan  # for all GPUs


class Replanner:
    """One route. Tell it each window; `seen` returns why a new plan is due, and `plan` makes it."""

    def __init__(self, settings: CascadeSettings, aim: Aim, profile: Sequence[ProfileRow]) -> None:
        self._settings = settings
        self._aim = aim
        self._models = [model.name for model in settings.models]
        self._detector = self._planned_for(profile, settings.rate_per_s)

    def seen(self, rows: Sequence[ProfileRow], requests: int, seconds: float) -> list[str]:
        """`rows` were sampled in a window of `seconds` with `requests` in all."""
        return self._detector.seen(traffic(rows, self._models, requests, seconds))

    def plan(self, rows: Sequence[ProfileRow], rate_per_s: float) -> Replanned:
        """From the newest of `rows`, all that were sampled, for all models: the route asks them whatever is planned.

        Raises UserError where no plan reaches the aim.
        """
        settings = self._settings.model_copy(update={"rate_per_s": rate_per_s})
        newest = _newest(rows, _PLANNED_REQUESTS)
        profile = make_profile(newest, self._models, "the sample")
        allocation = make_plan(settings, profile, self._aim, whole=True).plan
        thresholds = allocation
        if all(model.replicas for model in settings.models):
            thresholds = make_plan(settings, profile, self._aim, fixed_deployment=True, whole=True).plan
        self._detector = self._planned_for(newest, rate_per_s)
        return Replanned(thresholds, allocation)

    def _planned_for(self, rows: Sequence[ProfileRow], rate_per_s: float) -> ShiftDetector:
        planned = traffic(rows, self._models, int(rate_per_s * _HOUR_S), _HOUR_S)
        return ShiftDetector({**planned, RATE: replace(planned[RATE], mean=rate_per_s)})


@dataclass(frozen=True, slots=True)
class Watched:
    """One route of one sidecar, and the files that a new plan goes to."""

    config: Path
    route: str
    plan: Path
    advice: Path
    window_s: float


def watch_windows(planner: Replanner, watched: Watched, windows: int | None) -> Iterator[str]:
    """What happened, in lines; endless where `windows` is None. Raises UserError if there is nothing to watch."""
    samples, metrics_url = _sources(watched)
    counted, since_s = _counted(metrics_url, watched.route), time.time()
    for _ in count() if windows is None else range(windows):
        time.sleep(watched.window_s)
        seconds, before = time.time() - since_s, counted
        everything, window = sampled(samples, since_s)
        counted, since_s = _counted(metrics_url, watched.route), time.time()
        requests = counted - before if counted >= before else counted  # the sidecar started anew
        moved = planner.seen(window, requests, seconds) if requests else []  # no traffic is none to plan for
        if not moved:
            continue
        yield "moved: " + "; ".join(moved)
        try:
            made = planner.plan(everything, requests / seconds)
            put_in_force(watched.config, watched.route, made.thresholds.thresholds)
            write_plan(watched.plan, made.allocation)
            replace_file(watched.advice, advice(made.allocation).encode())
        except (UserError, OSError) as error:
            yield f"the old plan stays: {error}"
            continue
        thresholds = ", ".join(f"{each:g}" for each in made.thresholds.thresholds)
        yield f"planned again: thresholds {thresholds}; wrote {watched.plan} and {watched.advice}"


def _sources(watched: Watched) -> tuple[Path, str]:
    config = load(watched.config)
    route = config.cascades().get(watched.route)
    if route is None or route.sample is None:
        raise UserError(
            f"{watched.config}: routes.{watched.route} is no cascade with a sample; "
            "write there `sample: {share: 0.05, file: observed.jsonl}`, to plan from"
        )
    return watched.config.parent / route.sample.file, f"http://{config.listen.admin}/metrics"


def _counted(metrics_url: str, route: str) -> int:
    try:
        answer = httpx.get(metrics_url, timeout=10.0).raise_for_status()
    except httpx.HTTPError as error:
        raise UserError(f"{metrics_url} cannot be read ({type(error).__name__}); does the sidecar run?") from None
    return accepted(answer.text, route)


def _newest(rows: Sequence[ProfileRow], requests: int) -> list[ProfileRow]:
    names = dict.fromkeys(row.request for row in reversed(rows))
    kept = set(list(names)[:requests])
    return [row for row in rows if row.request in kept]


def sampled(path: Path, since_s: float) -> tuple[list[ProfileRow], list[ProfileRow]]:
    """All rows that the sidecar sampled, and those since the Unix time `since_s`: their requests are named by it."""
    files = [each for each in (path.with_name(f"{path.name}.1"), path) if each.exists()]
    rows = [row for file in files for row in read_rows(file)]
    return rows, [row for row in rows if _time_s(row.request) >= since_s]


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
        raise UserError(f"routes.{route} is no cascade with thresholds; name one with --route")
    written = ", ".join(f"{threshold:g}" for threshold in thresholds)
    end = node.end_mark.index
    if not text[:end].endswith("]"):  # a block sequence ends where the next key begins
        end = len(text[:end].rstrip())
    return f"{text[: name.end_mark.index]}: [{written}]{text[end:]}"


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
