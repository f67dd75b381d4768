"""Whether to believe expected times: as metrics and as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.core.calibration import Calibration


def metrics(calibration: Calibration) -> Iterator[Metric]:
    """By model, what is timed, and the tenth (1: those from which least was expected)."""
    calibration.settle()
    labels = ("model", "time", "tenth")
    expected = GaugeMetricFamily(
        "fairlead_calibration_expected_seconds",
        "Expected at the decision, on average of a tenth of the last answers, ordered by what was expected of them",
        labels=labels,
    )
    seen = GaugeMetricFamily(
        "fairlead_calibration_seen_seconds", "The median of what the same answers took", labels=labels
    )
    in_time = GaugeMetricFamily(
        "fairlead_calibration_in_time_ratio", "Share of the same answers that took no longer", labels=labels
    )
    for (model, time), tenths in calibration.tenths().items():
        for number, tenth in enumerate(tenths, 1):
            values = (model, time, str(number))
            expected.add_metric(values, tenth.expected_ms / 1e3)
            seen.add_metric(values, tenth.seen_p50_ms / 1e3)
            in_time.add_metric(values, tenth.in_time)
    yield from (expected, seen, in_time)


def document(calibration: Calibration) -> list[dict[str, Any]]:
    calibration.settle()
    return [
        {
            "model": model,
            "time": time,
            "tenths": [{name: round(value, 3) for name, value in tenth._asdict().items()} for tenth in tenths],
        }
        for (model, time), tenths in calibration.tenths().items()
    ]
