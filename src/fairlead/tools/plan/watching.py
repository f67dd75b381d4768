"""Watching a cascade: windows of its traffic from the sidecars that serve it, and new plans when it has moved.

Sidecars may be down, restart, or come later: a window that one of them does not answer is made up for by its next.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import httpx

from fairlead.config import load
from fairlead.errors import UserError
from fairlead.files import replace_file
from fairlead.tools.plan.plan_file import write_plan
from fairlead.tools.plan.replanning import Replanner, Window, accepted, advice, exactly, put_in_force, sampled

_SCRAPE_S = 10.0
_MOST_SILENT = 3  # windows without an answer, after which a sidecar counts as gone


@dataclass(frozen=True, slots=True)
class Watched:
    """One route of some sidecars, and the files that a new plan goes to."""

    configs: Sequence[Path]
    route: str
    plan: Path
    advice: Path
    window_s: float
    sidecars: Sequence[str] = ()  # host:port of their admin ports; empty: those that the configurations name


class Counter:
    """Counts the route's requests over all sidecars, through failed scrapes and restarts."""

    def __init__(self, urls: Sequence[str], route: str) -> None:
        self._urls = urls
        self._route = route
        self._last: dict[str, tuple[int, float]] = {}  # by sidecar: requests, and when it was asked
        self._silent: dict[str, int] = {}  # by sidecar that has answered before: windows since it last did
        self.failing: list[str] = []

    def rate_per_s(self, now_s: float) -> float | None:
        """Requests a second over all sidecars, each since it last answered; None at first, if none does, and for a few
        windows in which one that did before does not: what it serves is missing from the sum.
        """
        rates = []
        self.failing = []
        for url in self._urls:
            counted = _counted(url, self._route)
            if counted is None:
                self.failing.append(url)
                if url in self._last:
                    self._silent[url] = self._silent.get(url, 0) + 1
                continue
            self._silent.pop(url, None)
            before = self._last.get(url)
            self._last[url] = counted, now_s
            if before is not None and now_s > before[1]:
                new = counted - before[0] if counted >= before[0] else counted  # it restarted
                rates.append(new / (now_s - before[1]))
        is_known = all(silent > _MOST_SILENT for silent in self._silent.values())
        return sum(rates) if rates and is_known else None


def watch_windows(planner: Replanner, watched: Watched, windows: int | None) -> Iterator[str]:
    """Lines of text on what happened; endless if `windows` is None. Raises UserError if there is nothing to watch."""
    samples, urls, thresholds = _sources(watched)
    planner.follow(thresholds)
    counter = Counter(urls, watched.route)
    since_s = time.time()
    counter.rate_per_s(since_s)
    if len(counter.failing) == len(urls):
        raise UserError(f"{', '.join(urls)} cannot be read; does the sidecar run?")
    known_failing: list[str] = counter.failing
    for _ in count() if windows is None else range(windows):
        time.sleep(watched.window_s)
        now_s = time.time()
        try:
            rows = [row for path in samples for row in sampled(path, since_s)]
        except UserError as error:
            yield f"this window's sample is left out: {error}"
            rows = []
        rate = counter.rate_per_s(now_s)
        window = Window(now_s - since_s, rate, rows)
        since_s = now_s
        if counter.failing != known_failing:
            known_failing = counter.failing
            names = ", ".join(known_failing)
            yield f"no answer from {names}; going on" if names else "all sidecars answer again"
        moved = [] if rate == 0 else planner.seen(window)  # no traffic: nothing to plan for
        if moved:
            yield "moved: " + "; ".join(moved)
            yield _planned_again(planner, watched)


def _planned_again(planner: Replanner, watched: Watched) -> str:
    try:
        made = planner.plan()
        for config in watched.configs:
            put_in_force(config, watched.route, made.thresholds.thresholds)
        write_plan(watched.plan, made.allocation)
        replace_file(watched.advice, advice(made.allocation).encode())
    except (UserError, OSError) as error:
        return f"the old plan stays: {error}"
    thresholds = ", ".join(map(exactly, made.thresholds.thresholds))
    return f"planned again: thresholds {thresholds}; wrote {watched.plan} and {watched.advice}"


def _sources(watched: Watched) -> tuple[list[Path], list[str], Sequence[float]]:
    samples, admins = [], []
    thresholds: Sequence[float] = ()
    for path in watched.configs:
        config = load(path)
        route = config.cascades().get(watched.route)
        if route is None or route.sample is None:
            raise UserError(
                f"{path}: routes.{watched.route} is not a cascade with a sample; "
                "write there `sample: {share: 0.05, file: observed.jsonl}`, to plan from"
            )
        thresholds = route.thresholds
        samples.append(path.parent / route.sample.file)
        admins.append(config.listen.admin)
    urls = [f"http://{admin}/metrics" for admin in dict.fromkeys(watched.sidecars or admins)]
    return list(dict.fromkeys(samples)), urls, thresholds


def _counted(metrics_url: str, route: str) -> int | None:
    try:
        answer = httpx.get(metrics_url, timeout=_SCRAPE_S).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL):
        return None
    return accepted(answer.text, route)
