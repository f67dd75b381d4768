"""Prometheus metrics of prompts that one engine computes and another decodes, from counts when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.admin.families import histogram
from fairlead.core.pool import Pool
from fairlead.engines.remote_prefill import RemotePrefills


def metrics(prefills: RemotePrefills, pool: Pool) -> Iterator[Metric]:
    outcomes = CounterMetricFamily(
        "fairlead_remote_prefills",
        "Prompts that another engine was asked to compute; failed: the engine that answers computed them itself",
        labels=("outcome", "reason"),
    )
    outcomes.add_metric(("done", ""), prefills.done)
    for reason, count in prefills.failed.items():
        outcomes.add_metric(("failed", reason), count)
    yield outcomes
    pauses = CounterMetricFamily(
        "fairlead_remote_prefill_pauses",
        "Times an endpoint was asked for no more prompts for a while, as five in a row had come to nothing",
        labels=("endpoint",),
    )
    for endpoint in dict.fromkeys(chain.from_iterable(pool.prefilling.values())):
        pauses.add_metric((endpoint.address,), endpoint.hops.outs)
    yield pauses
    yield histogram(
        "fairlead_remote_prefill_seconds",
        "From the question to another engine until it had computed the prompt",
        (),
        [((), prefills.seconds)],
    )
