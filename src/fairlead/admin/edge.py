"""Metrics of the port that Envoy talks to: its connections, the loop that serves them, and bodies that wait."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.admin.families import histogram
from fairlead.edge.statistics import EdgeStatistics
from fairlead.extproc.services import Services


def metrics(services: Services) -> Iterator[Metric]:
    yield _loop(services)
    yield from _bodies(services)
    if services.edge is not None:
        yield from _connections(services.edge())


def _loop(services: Services) -> Metric:
    return histogram(
        "fairlead_event_loop_delay_seconds",
        "How late the event loop was, seen twenty times a second; every request waits as long",
        (),
        (((), services.loop_delays_s),),
    )


def _bodies(services: Services) -> Iterator[Metric]:
    held = services.held
    yield GaugeMetricFamily(
        "fairlead_held_body_bytes",
        "Request bodies that wait for their rest or to be read; at the limit further ones get a 503",
        value=held.bytes,
    )
    yield CounterMetricFamily(
        "fairlead_bodies_refused", "Request bodies that found no room and got a 503", value=held.refused
    )
    yield CounterMetricFamily(
        "fairlead_bodies_displaced",
        "Request bodies that were still coming in after 5 s, and got a 503 as others found no room",
        value=held.displaced,
    )
    if services.reader is not None:
        yield CounterMetricFamily(
            "fairlead_body_reader_restarts",
            "Processes that read long bodies and died, or hung and were ended",
            value=services.reader.restarts,
        )


def _connections(edge: EdgeStatistics) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "fairlead_edge_connections", "Connections open now: of Envoy, one for each worker", edge.open_connections
    )
    yield CounterMetricFamily(
        "fairlead_edge_connections_refused",
        "Connections closed at once: too many were open, or the sidecar was draining",
        edge.refused_connections,
    )
    yield CounterMetricFamily(
        "fairlead_edge_streams_refused",
        "Streams beyond the most that one connection may have; Envoy opens another connection for them",
        edge.refused_streams,
    )
    faults = CounterMetricFamily(
        "fairlead_edge_faults",
        "Connections that were closed for what the peer did, by HTTP/2 error code; stalled: it stopped reading",
        labels=("code",),
    )
    for code, count in edge.faults.items():
        faults.add_metric((code,), count)
    yield faults
    yield GaugeMetricFamily(
        "fairlead_edge_unfinished_bytes", "Of messages whose rest has not come", edge.unfinished_bytes
    )
