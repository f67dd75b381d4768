"""Metrics of each endpoint: its load, whether it may be chosen, and what watching it found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.core.health import DRAINING, LEAVING
from fairlead.core.pool import Pool
from fairlead.engines.observer import Observers

_ON_THE_WAY_OUT: Final = frozenset({DRAINING, LEAVING})  # by intention: nobody is to be woken for these


def metrics(pool: Pool, observers: Observers) -> Iterator[Metric]:
    yield from _load(pool)
    yield from _changes(pool)
    yield from _reads(observers)


def _load(pool: Pool) -> Iterator[Metric]:
    inflight = GaugeMetricFamily("fairlead_inflight_requests", "Requests sent and not ended", labels=("endpoint",))
    awaited = GaugeMetricFamily(
        "fairlead_awaited_requests",
        "Of those in flight, requests whose prompt another endpoint still computes",
        labels=("endpoint",),
    )
    pending = GaugeMetricFamily(
        "fairlead_pending_prefill_tokens", "Prompt tokens sent and still to be prefilled", labels=("endpoint",)
    )
    up = GaugeMetricFamily(
        "fairlead_endpoint_up",
        "1 if the endpoint may be chosen, else 0; absent while it drains",
        labels=("endpoint",),
    )
    rtt = GaugeMetricFamily("fairlead_rtt_seconds", "Network round trip, smoothed", labels=("endpoint",))
    for endpoint in pool.endpoints:
        inflight.add_metric((endpoint.address,), endpoint.own.inflight_requests)
        if pool.prefilling:
            awaited.add_metric((endpoint.address,), endpoint.own.awaited_requests)
        pending.add_metric((endpoint.address,), endpoint.own.pending_prefill_tokens)
        if not endpoint.health.withheld & _ON_THE_WAY_OUT:
            up.add_metric((endpoint.address,), float(endpoint.health.healthy))
        rtt.add_metric((endpoint.address,), endpoint.rtt_ms / 1e3)
    yield from (inflight, awaited, pending, up, rtt)


def _changes(pool: Pool) -> Iterator[Metric]:
    ejections = CounterMetricFamily(
        "fairlead_endpoint_ejections", "Times an endpoint was taken out of the choice", labels=("endpoint",)
    )
    restarts = CounterMetricFamily("fairlead_endpoint_restarts", "Restarts seen", labels=("endpoint",))
    for endpoint in pool.endpoints:
        ejections.add_metric((endpoint.address,), endpoint.health.ejections)
        restarts.add_metric((endpoint.address,), endpoint.generation)
    yield from (ejections, restarts)


def _reads(observers: Observers) -> Iterator[Metric]:
    scrapes = CounterMetricFamily("fairlead_engine_scrapes", "Reads of engines' metrics", labels=("endpoint",))
    failures = CounterMetricFamily(
        "fairlead_engine_watch_failures",
        "Reads of metrics and probes of health that failed, by reason",
        labels=("endpoint", "kind", "reason"),
    )
    for address, counts in observers.counts.items():
        scrapes.add_metric((address,), counts.scrapes)
        for kind, reasons in (("metrics", counts.scrape_failures), ("health", counts.probe_failures)):
            for reason, count in reasons.items():
                failures.add_metric((address, kind, reason), count)
    yield from (scrapes, failures)
