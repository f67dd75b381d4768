"""Families of metrics that several parts make."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.core.histogram import Histogram


def histogram(
    name: str,
    text: str,
    labels: tuple[str, ...],
    series: Iterable[tuple[tuple[str, ...], Histogram]],
    unit: float = 1.0,
) -> Metric:
    """`unit` is that of the counted values, in the base unit that `name` ends with: 1e-3 for milliseconds."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, seen in series:
        bounds = (*[str(bound * unit) for bound in seen.bounds], "+Inf")
        family.add_metric(values, list(zip(bounds, accumulate(seen.counts), strict=True)), seen.sum * unit)
    return family
