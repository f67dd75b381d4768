"""Families of metrics that several parts make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar

from fairlead.core.histogram import Histogram


def _none(_: tuple[str, ...]) -> Mapping[int, Exemplar]:
    return {}


def histogram(
    name: str,
    text: str,
    labels: tuple[str, ...],
    series: Iterable[tuple[tuple[str, ...], Histogram]],
    unit: float = 1.0,
    exemplars: Callable[[tuple[str, ...]], Mapping[int, Exemplar]] = _none,
) -> Metric:
    """`unit` is that of the counted values, in the base unit that `name` ends with: 1e-3 for milliseconds.

    `exemplars` gives those of a series, by the place of their bucket.
    """
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, seen in series:
        bounds = (*[str(bound * unit) for bound in seen.bounds], "+Inf")
        found = exemplars(values)
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        for place, (bound, count) in enumerate(zip(bounds, accumulate(seen.counts), strict=True)):
            exemplar = found.get(place)
            buckets.append((bound, count) if exemplar is None else (bound, count, exemplar))
        family.add_metric(values, buckets, seen.sum * unit)
    return family
