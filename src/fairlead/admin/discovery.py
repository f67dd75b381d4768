"""Metrics of where endpoints come from, and of the Envoys that follow the pool."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.core.health import WITHHELD_REASONS
from fairlead.extproc.services import Services


def metrics(services: Services) -> Iterator[Metric]:
    yield from _sources(services)
    yield from _envoys(services)
    withheld = GaugeMetricFamily(
        "fairlead_endpoints_withheld",
        "Endpoints that get nothing new for a reason other than their health; unknown_to_envoy: chosen, not served",
        labels=("reason",),
    )
    for reason in WITHHELD_REASONS:
        count = sum(reason in endpoint.health.withheld for endpoint in services.router.pool.endpoints)
        withheld.add_metric((reason,), count)
    yield withheld


def _sources(services: Services) -> Iterator[Metric]:
    endpoints = GaugeMetricFamily("fairlead_discovered_endpoints", "Endpoints that a source lists", labels=("source",))
    age = GaugeMetricFamily(
        "fairlead_discovery_age_seconds",
        "How long ago a source was last read, or first asked where it never was; it grows while it cannot be, and its "
        "last set stays in force",
        labels=("source",),
    )
    changes = CounterMetricFamily("fairlead_discovery_changes", "Sets that differed from the last", labels=("source",))
    failures = CounterMetricFamily("fairlead_discovery_failures", "Failed reads of a source", labels=("source",))
    refused = CounterMetricFamily(
        "fairlead_discovery_refused",
        "Listed addresses at which Fairlead or its gateway listens; they get nothing: remove them from the source",
        labels=("source",),
    )
    rules = CounterMetricFamily(
        "fairlead_discovery_rules_failures",
        "Failed reads of InferenceObjectives and InferenceModelRewrites; the last known stay in force",
        labels=("source",),
    )
    for status in services.discovery.statuses:
        labels = (status.name,)
        if status.age_s() is not None:
            endpoints.add_metric(labels, len(status.endpoints or ()))
        age.add_metric(labels, status.unread_s())
        changes.add_metric(labels, status.changes)
        failures.add_metric(labels, status.failures)
        refused.add_metric(labels, status.refused)
        rules.add_metric(labels, status.rules_failures)
    yield from (endpoints, age, changes, failures, refused, rules)


def _envoys(services: Services) -> Iterator[Metric]:
    seen = services.envoys.statistics()
    yield GaugeMetricFamily("fairlead_eds_streams", "Streams of Envoys that follow the pool", value=seen.streams)
    yield CounterMetricFamily("fairlead_eds_pushes", "Sets of endpoints sent to them", value=seen.pushes)
    answers = CounterMetricFamily(
        "fairlead_eds_answers",
        "What they answered; after a nack an Envoy keeps what it had, and the log says why",
        labels=("answer",),
    )
    answers.add_metric(("ack",), seen.acks)
    answers.add_metric(("nack",), seen.nacks)
    yield answers
