"""Families of metrics that several parts make."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.telemetry.recorder import Histogram


def histogram(
    name: str, text: str, labels: tuple[str, ...], series: Iterable[tuple[tuple[str, ...], Histogram]]
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, seen in series:
        bounds = (*map(str, seen.bounds), "+Inf")
        family.add_metric(values, list(zip(bounds, accumulate(seen.counts), strict=True)), seen.sum)
    return family
