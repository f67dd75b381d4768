"""Metrics of context reuse."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.context.reuse import ContextReuse


def metrics(reuse: ContextReuse) -> Iterator[Metric]:
    """What context reuse saved, what it failed at, and its memory."""
    counts = reuse.counts
    requests = CounterMetricFamily(
        "fairlead_context_requests",
        "Requests that context reuse looked at, those it changed, and those of which texts went on unread after 5 ms",
        labels=("outcome",),
    )
    for outcome, count in (("looked_at", counts.planned), ("changed", counts.changed), ("late", counts.late)):
        requests.add_metric((outcome,), count)
    yield requests
    yield CounterMetricFamily(
        "fairlead_context_reordered_tokens",
        "Prompt tokens expected in the endpoint's cache thanks to another order of documents",
        value=counts.reordered_tokens,
    )
    yield CounterMetricFamily(
        "fairlead_context_dropped_tokens", "Prompt tokens replaced by references", value=counts.dropped_tokens
    )
    yield GaugeMetricFamily(
        "fairlead_context_memory_bytes", "Memory of what became of conversations", value=reuse.used_bytes
    )
    yield GaugeMetricFamily(
        "fairlead_context_index_prefixes",
        "Beginnings of orders that later requests may align to",
        value=len(reuse.index),
    )
