"""Cascades as metrics and as a document: whose answers were accepted, why some were not judged, what time it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.admin.families import histogram
from fairlead.cascade.counts import CascadeCounts
from fairlead.core.histogram import Histogram


def metrics(counts: CascadeCounts) -> Iterator[Metric]:
    accepted = CounterMetricFamily(
        "fairlead_cascade_accepted",
        "Answers given by a cascade, by the model whose answer it was: more of the last model's is more work",
        labels=("route", "model"),
    )
    for (route, model), count in counts.accepted.items():
        accepted.add_metric((route, model), count)
    passed = CounterMetricFamily(
        "fairlead_cascade_passed",
        "Answers accepted without a sufficient score, by reason: judge, deadline and stages_down want a look",
        labels=("route", "reason"),
    )
    for (route, reason), count in counts.passed.items():
        passed.add_metric((route, reason), count)
    sampled = CounterMetricFamily(
        "fairlead_cascade_samples",
        "Requests to be put through all models: unwritten means that the file cannot be written",
        labels=("outcome",),
    )
    for outcome, count in counts.sampled.items():
        sampled.add_metric((outcome,), count)
    yield from (accepted, passed, sampled)
    yield GaugeMetricFamily("fairlead_cascade_held", "Answers held back at this moment", value=counts.held)
    yield histogram(
        "fairlead_cascade_added_seconds",
        "From the first answer to the accepted one: judging and larger models",
        ("route",),
        [((route,), seen) for route, seen in counts.added_seconds.items()],
    )
    yield histogram(
        "fairlead_cascade_score",
        "Scores that judges gave to a model's answers; when these move, plan again",
        ("model",),
        [((model,), seen) for model, seen in counts.scores.items()],
    )


def document(counts: CascadeCounts) -> dict[str, Any]:
    """Since the start, by route; scores are of 100, on average. Unknown is null."""
    routes = dict.fromkeys([route for route, _ in (*counts.accepted, *counts.passed)])
    return {
        "held": counts.held,
        "routes": [
            {
                "route": route,
                "accepted": {model: count for (of, model), count in counts.accepted.items() if of == route},
                "not_judged": {reason: count for (of, reason), count in counts.passed.items() if of == route},
                "added_ms": _mean(counts.added_seconds.get(route), 1e3),
            }
            for route in routes
        ],
        "scores": {model: _mean(seen) for model, seen in counts.scores.items()},
    }


def _mean(seen: Histogram | None, unit: float = 1.0) -> float | None:
    return None if seen is None or not seen.count else round(unit * seen.sum / seen.count, 3)
