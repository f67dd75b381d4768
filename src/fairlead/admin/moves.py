"""Moves of sessions as metrics and as a document, made from the planner's and the mover's counts when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.admin.families import histogram
from fairlead.core.migration import MOST_TIMES, Planner
from fairlead.migration.mover import Mover

_TIMES = (1, 2, 3, 5, 10, MOST_TIMES)


def move_metrics(planner: Planner, mover: Mover) -> Iterator[Metric]:
    outcomes = CounterMetricFamily(
        "fairlead_session_migrations",
        "Moves of sessions by way and outcome; tried: begun, dropped: no longer wanted or not possible by token ids",
        labels=("way", "outcome"),
    )
    for way in ("copy", "pull", "recompute"):
        outcomes.add_metric((way, "tried"), planner.planned[way])
        outcomes.add_metric((way, "done"), planner.done[way])
    outcomes.add_metric(("copy", "failed"), mover.counts.failed.total())
    outcomes.add_metric(("copy", "dropped"), mover.counts.dropped.total())
    yield outcomes
    for name, text, labels, counts in (
        ("failures", "Copies that failed, by leg and reason", ("stage", "reason"), mover.counts.failed),
        ("dropped", "Copies that were dropped, by reason", ("reason",), mover.counts.dropped),
        ("refused", "Requests whose session stayed on a hot host, by reason", ("reason",), planner.stayed),
    ):
        family = CounterMetricFamily(f"fairlead_session_migrations_{name}", text, labels=labels)
        for key, count in counts.items():
            family.add_metric((key,) if isinstance(key, str) else key, count)
        yield family
    yield CounterMetricFamily(
        "fairlead_session_migrated_tokens", "Tokens whose KV went from one engine to another", value=mover.counts.tokens
    )
    yield CounterMetricFamily(
        "fairlead_session_migrated_bytes",
        "Bytes of that KV, of copies where the engine tells them or the model's kv_bytes_per_token is configured",
        value=mover.counts.bytes,
    )
    yield CounterMetricFamily(
        "fairlead_session_migrations_back", "Moves back to the endpoint that the session had left", value=planner.back
    )
    yield GaugeMetricFamily("fairlead_session_migrations_under_way", "Copies under way", value=mover.under_way)
    yield GaugeMetricFamily(
        "fairlead_session_migrations_ordered",
        "Sessions ordered to move at their next request",
        value=len(planner.commands),
    )
    yield _times(planner)
    yield histogram(
        "fairlead_session_migration_seconds",
        "Time of each leg of the copies that succeeded",
        ("stage",),
        [((stage,), seen) for stage, seen in mover.counts.seconds.items()],
    )


def document(planner: Planner, mover: Mover) -> dict[str, Any]:
    """Copies under way, oldest first, and counts since the start; no session is named."""
    return {
        "copies": [msgspec.structs.asdict(copy) for copy in mover.copies()],
        "commanded": len(planner.commands),  # sessions that move at their next request
        "draining": sorted(planner.draining),
        "done": planner.done,
        "failed": mover.counts.failed.total(),
        "dropped": mover.counts.dropped.total(),
        "stayed": planner.stayed,  # on a hot endpoint, by reason
        "tokens": mover.counts.tokens,
    }


def _times(planner: Planner) -> Metric:
    family = HistogramMetricFamily("fairlead_session_moves", "How often a session has moved, seen at each of its moves")
    upto = [(f"{bound:.1f}", float(sum(n for t, n in planner.times.items() if t <= bound))) for bound in _TIMES[:-1]]
    total = sum(planner.times.values())
    family.add_metric((), [*upto, ("+Inf", float(total))], float(sum(t * n for t, n in planner.times.items())))
    return family
