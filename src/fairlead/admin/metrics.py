"""The page of Prometheus metrics, made from plain counts when it is scraped; each part of it is in a module here."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from fairlead import __version__
from fairlead.admin import (
    calibration,
    cascade,
    discovery,
    edge,
    endpoints,
    learned,
    prefills,
    rates,
    requests,
    reuse,
    tables,
    tuner,
    waiting,
)
from fairlead.admin.moves import move_metrics
from fairlead.decision_log.uploads import Uploads
from fairlead.extproc.services import Services

_PROCESS: Final = ProcessCollector(registry=None)  # CPU, memory, descriptors and start of this process


class FairleadCollector(Collector):
    """Reads counts; must be scraped on the event loop that writes them."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        services = self._services
        build = GaugeMetricFamily("fairlead_build_info", "1, with the version that runs", labels=("version", "python"))
        build.add_metric((__version__, platform.python_version()), 1)
        yield build
        yield from _PROCESS.collect()
        yield from requests.metrics(services.recorder, services.tracer.exemplars)
        yield from endpoints.metrics(services.router.pool, services.observers)
        yield from discovery.metrics(services)
        yield from tables.metrics(services)
        yield from learned.metrics(services)
        yield from tuner.metrics(services.router)
        yield from move_metrics(services.router.planner, services.mover)
        yield from prefills.metrics(services.prefills, services.router.pool)
        yield from reuse.metrics(services.reuse.reuse)
        yield from cascade.metrics(services.cascades.counts)
        yield from waiting.metrics(services.admission, services.router.pool)
        yield from rates.metrics(services.rates)
        yield from calibration.metrics(services.calibration)
        yield from edge.metrics(services)
        yield from _faults(services)
        yield from _logs(services)
        yield GaugeMetricFamily(
            "fairlead_running_streams", "Processing streams open now", value=services.recorder.running_streams
        )


def render(collector: Collector, *, open_metrics: bool = False) -> bytes:
    """One collector in Prometheus' text format, or in OpenMetrics', which has exemplars too."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encoded: bytes = (openmetrics.generate_latest if open_metrics else generate_latest)(registry)
    return encoded


def _faults(services: Services) -> Iterator[Metric]:
    failures = CounterMetricFamily(
        "fairlead_failures",
        "Faults of Fairlead itself; requests went on without its advice. The log has the cause",
        labels=("stage",),
    )
    failures.add_metric(("policy",), services.router.policy_failures)
    failures.add_metric(("stream",), services.recorder.stream_failures)
    failures.add_metric(("reuse",), services.reuse.reuse.counts.failures)
    failures.add_metric(("background",), services.recorder.background_failures)
    yield failures
    yield CounterMetricFamily(
        "fairlead_out_of_order_messages",
        "Messages that Envoy's protocol does not allow where they came; the request went on without our advice",
        value=services.recorder.out_of_order_messages,
    )
    held = CounterMetricFamily(
        "fairlead_held_streams",
        "Streams of engines whose queue is limited, held until their first event; a refused one went to another "
        "endpoint, or got the status of its error",
        labels=("outcome",),
    )
    refused = services.recorder.refused_streams
    held.add_metric(("refused",), refused)
    held.add_metric(("passed",), services.recorder.held_streams - refused)
    yield held
    suspects = CounterMetricFamily(
        "fairlead_suspect_prompts",
        "Requests whose prompt had failed at several engines that worked; alone: sent to one, without fallbacks, "
        "refused: with 422, as that one had failed too",
        labels=("outcome",),
    )
    suspects.add_metric(("alone",), services.router.suspects.alone)
    suspects.add_metric(("refused",), services.router.suspects.refused)
    yield suspects
    yield CounterMetricFamily(
        "fairlead_reloads_refused",
        "New configurations that were wrong; the old one stays, the log has the reason",
        value=services.recorder.reloads_refused,
    )


def _uploads(uploads: Uploads) -> Iterator[Metric]:
    files = CounterMetricFamily(
        "fairlead_decision_log_uploads",
        "Files of the decision log for the object store; failed: tried again later, lost: the spool was full",
        labels=("outcome",),
    )
    for outcome, count in uploads.counts.items():
        files.add_metric((outcome,), count)
    yield files
    yield GaugeMetricFamily(
        "fairlead_decision_log_spooled_bytes",
        "Of files of the decision log that wait for the object store; at decisions.rotate_mb the oldest are lost",
        value=uploads.waiting_bytes,
    )


def _logs(services: Services) -> Iterator[Metric]:
    rows = CounterMetricFamily(
        "fairlead_decision_log_rows",
        "Rows of the decision log; dropped: too many waited, failed: the file could not be written",
        labels=("outcome",),
    )
    for outcome, count in services.log.counts.items():
        rows.add_metric((outcome,), count)
    yield rows
    if services.log.uploads is not None:
        yield from _uploads(services.log.uploads)
    traced = CounterMetricFamily(
        "fairlead_traced_requests",
        "Requests traced; dropped: too many waited, failed: the collector did not take them",
        labels=("outcome",),
    )
    for became, count in services.tracer.counts.items():
        traced.add_metric((became,), count)
    yield traced
