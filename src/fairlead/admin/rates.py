"""Rate limits of tenants, as metrics and as a document for people. Tenants are not labels: there may be many."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from heapq import nsmallest
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.admission.rates import OTHERS, Level, RateLimits

_SHOWN: Final = 50  # tenants, those with the least left
_AT_ONCE: Final = 256


def metrics(rates: RateLimits) -> Iterator[Metric]:
    limited = CounterMetricFamily(
        "fairlead_rate_limited_requests",
        "Requests refused with 429, because their tenant had had its share of the minute",
        labels=("limit",),
    )
    for unit, count in rates.denied.items():
        limited.add_metric((unit,), count)
    yield limited
    yield GaugeMetricFamily(
        "fairlead_rate_limit_tenants", "Tenants whose use of this minute is remembered", value=rates.tenants
    )
    yield GaugeMetricFamily(
        "fairlead_rate_limit_share",
        "Part of every rate limit that this sidecar may grant; 1 while it shares what it granted over Redis",
        value=rates.share,
    )
    yield CounterMetricFamily(
        "fairlead_rate_limit_folded_requests",
        "Requests of tenants that shared one limit, as too many others were remembered",
        value=rates.folded,
    )


async def document(rates: RateLimits, now_s: float) -> list[dict[str, Any]]:
    """Each tenant's limits and what is left of them, those with the least left first."""
    found: list[tuple[float, int, bytes, tuple[Level, ...]]] = []
    for number, (tenant, levels) in enumerate(rates.all_levels(now_s)):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)  # ten thousand take 40 ms: requests go in between
        found.append((_least(levels), number, tenant, levels))
    return [
        {
            "tenant": "others" if tenant == OTHERS else tenant.decode(errors="replace"),
            "limits": {
                level.unit: {
                    "limit": level.limit,
                    "left": round(level.left),
                    "full_in_s": round(level.full_in_s, 1),
                }
                for level in levels
            },
        }
        for _, _, tenant, levels in nsmallest(_SHOWN, found)
    ]


def _least(levels: tuple[Level, ...]) -> float:
    return min((level.left / level.limit for level in levels), default=1.0)
