"""What waits for an engine, as metrics and as a document for the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.admin.families import histogram
from fairlead.admission.admission import Admission
from fairlead.core.pool import Pool

OUTCOMES: Final = ("go", "full", "expired", "displaced", "shutting_down", "client_gone", "evicted")
_SHOWN_TENANTS: Final = 20  # of a band, those with the most work


def metrics(admission: Admission, pool: Pool) -> Iterator[Metric]:
    """By the names of priorities, which the configuration bounds; tenants are not labels."""
    waiting = GaugeMetricFamily(
        "fairlead_waiting_requests", "Requests held back until an engine has room", labels=("priority",)
    )
    work = GaugeMetricFamily(
        "fairlead_waiting_engine_seconds", "Engine time that those requests will take, expected", labels=("priority",)
    )
    outcomes = CounterMetricFamily(
        "fairlead_waited_requests",
        "Requests that could not begin at once, by what became of them: go began after all, evicted was "
        "ended while it ran, the others were refused",
        labels=("priority", "outcome"),
    )
    requests: dict[str, int] = {}
    engine_ms: dict[str, float] = {}
    for group in admission.queue.groups.values():
        for level, band in group.bands.items():
            name = admission.band(level).name
            requests[name] = requests.get(name, 0) + band.requests
            engine_ms[name] = engine_ms.get(name, 0.0) + band.waiting_ms
    for name in {*admission.counts, *requests}:
        waiting.add_metric((name,), requests.get(name, 0))
        work.add_metric((name,), engine_ms.get(name, 0.0) / 1e3)
    for name, counts in admission.counts.items():
        for outcome in OUTCOMES:
            outcomes.add_metric((name, outcome), counts.outcomes.get(outcome, 0))
    yield from (waiting, work, outcomes)
    yield histogram(
        "fairlead_wait_seconds",
        "How long requests that could not begin at once were held back",
        ("priority",),
        [((name,), counts.wait_seconds) for name, counts in admission.counts.items()],
    )
    limit = GaugeMetricFamily(
        "fairlead_endpoint_running_limit",
        "Requests that the engine runs at once, learned from what it left waiting; absent until it has had too many",
        labels=("endpoint",),
    )
    for endpoint in pool.endpoints:
        if endpoint.running_limit.requests is not None:
            limit.add_metric((endpoint.address,), endpoint.running_limit.requests)
    yield limit


def document(admission: Admission, now_s: float) -> list[dict[str, Any]]:
    """What waits by group of models, priority and tenant, and how long a new request of each would wait."""
    return [
        {
            "models": group_name,
            "priority": admission.band(level).name,
            "level": level,
            "requests": band.requests,
            "bytes": band.bytes,
            "engine_ms": round(band.waiting_ms),
            "new_request_waits_ms": round(admission.queue.expected_wait_ms(group_name, level, b"\0new", now_s)),
            "tenants": [
                {
                    "tenant": "others" if account.tenant.startswith(b"\0") else account.tenant.decode(errors="replace"),
                    "requests": len(account.waiting),
                    "engine_ms": round(account.waiting_ms),
                    "answers_over_usual": round(admission.lengths.of(account.tenant), 2),
                    "new_request_waits_ms": round(
                        admission.queue.expected_wait_ms(group_name, level, account.tenant, now_s)
                    ),
                }
                for account in sorted(band.accounts.values(), key=lambda each: -each.waiting_ms)[:_SHOWN_TENANTS]
            ],
        }
        for group_name, group in admission.queue.groups.items()
        for level, band in group.bands.items()
    ]
