"""Metrics of what the router keeps: sessions and prefixes, the KV events that correct these, and the shared store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.core.router import Router
from fairlead.extproc.services import Services

_KV_OUTCOMES: Final = (
    "batches", "garbage", "unreadable", "unplaced", "gaps", "replayed", "lost", "restarts", "cleared", "overflows",
    "faults",
)  # fmt: skip


def metrics(services: Services) -> Iterator[Metric]:
    yield from _tables(services.router)
    yield from _kv_events(services)
    yield from _store(services)


def _tables(router: Router) -> Iterator[Metric]:
    yield GaugeMetricFamily("fairlead_sessions", "Sessions that live on an endpoint", value=router.sessions.count)
    yield GaugeMetricFamily("fairlead_prefix_index_bytes", "Memory of the prefix index", value=router.index.used_bytes)
    blocks = GaugeMetricFamily(
        "fairlead_prefix_index_blocks", "Prompt blocks of 512 bytes thought to be cached", labels=("endpoint",)
    )
    for endpoint in router.pool.endpoints:
        blocks.add_metric((endpoint.address,), router.indexed_blocks(endpoint))
    yield blocks


def _kv_events(services: Services) -> Iterator[Metric]:
    events = CounterMetricFamily(
        "fairlead_kv_events",
        "KV events of engines, by what became of them; lost: the precise index forgot the endpoint",
        labels=("endpoint", "outcome"),
    )
    for address, counts in services.kv_following.counts.items():
        for outcome in _KV_OUTCOMES:
            events.add_metric((address, outcome), getattr(counts, outcome))
    yield events


def _store(services: Services) -> Iterator[Metric]:
    store = services.store.statistics()
    if store is None:
        return
    yield GaugeMetricFamily(
        "fairlead_store_up",
        "1 if the shared store answers and refuses nothing; if 0 the local table serves",
        value=store.up,
    )
    yield GaugeMetricFamily("fairlead_store_peers", "Other sidecars that share it", value=store.peers)
    yield GaugeMetricFamily("fairlead_store_pending", "Bindings that wait to be written to it", value=store.pending)
    outcomes = CounterMetricFamily(
        "fairlead_store", "What passed through the shared store, by outcome", labels=("outcome",)
    )
    for outcome, count in store.outcomes.items():
        outcomes.add_metric((outcome,), count)
    yield outcomes
