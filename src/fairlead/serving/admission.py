"""The sections `admission` and `rate_limits` of the configuration, as the rules of the queue and of the buckets."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from fairlead.admission.admission import Rules
from fairlead.admission.limits import BandRules, Limits, QueueRules
from fairlead.admission.rates import Rate, RateRules
from fairlead.api import headers as names
from fairlead.config import Admission, Config
from fairlead.config.admission import Objective, usual_share
from fairlead.config.rate_limits import ANY_TENANT, RateLimit, RateLimits
from fairlead.core.objective import Slo
from fairlead.extproc.waiting_room import Naming

MOST_LEVELS: Final = 64  # of objectives: each request that must wait is compared with all levels that have some

Objectives = Mapping[str, int]  # the level of each, by name


def rules_of(admission: Admission | None, objectives: Objectives | None = None) -> Rules | None:
    """None: nothing waits. Levels that only `objectives` have are named by their number."""
    if admission is None:
        return None
    of_tenant = Limits(requests=admission.max_requests_of_tenant)
    bands = {0: BandRules(of_tenant=of_tenant, longest_wait_s=admission.max_wait_s)}
    for name, priority in admission.priorities.items():
        most = inf if priority.max_requests is None else priority.max_requests
        bands[priority.level] = BandRules(
            name=name,
            limits=Limits(requests=most),
            of_tenant=of_tenant,
            share=priority.share_in_force,
            longest_wait_s=admission.max_wait_s if priority.max_wait_s is None else priority.max_wait_s,
        )
    for level in sorted(set((objectives or {}).values()) - set(bands)):
        bands[level] = BandRules(
            name=str(level),
            of_tenant=of_tenant,
            share=_share(admission, level),
            longest_wait_s=admission.max_wait_s,
        )
    limits = Limits(requests=admission.max_requests, bytes=admission.max_bytes)
    queue = QueueRules(limits=limits, bands=bands, aging_s=admission.aging_s)
    return Rules(queue, admission.begin_within_ms, evicts_lower=admission.evict == "lower")


def rate_rules_of(limits: RateLimits | None) -> RateRules | None:
    """None: nobody is limited."""
    if limits is None:
        return None
    rates = {name: _rate_of(limit) for name, limit in limits.tenants.items()}
    others = rates.pop(ANY_TENANT, None)
    return RateRules({name.encode(): rate for name, rate in rates.items()}, others, limits.sidecars)


def _rate_of(limit: RateLimit) -> Rate:
    return Rate(
        inf if limit.tokens is None else limit.tokens,
        inf if limit.engine_ms is None else limit.engine_ms,
    )


def _slo_of(objective: Objective) -> Slo:
    return Slo(
        inf if objective.ttft_ms is None else objective.ttft_ms,
        inf if objective.tpot_ms is None else objective.tpot_ms,
        refuses=objective.otherwise == "refuse",
    )


def longest_wait_s(rules: Rules | None) -> float:
    return 0.0 if rules is None else max(band.longest_wait_s for band in rules.queue.bands.values())


def bounded(objectives: Objectives) -> Objectives:
    """Of so many levels that the queue stays quick: the lowest share one."""
    levels = sorted(set(objectives.values()), reverse=True)
    if len(levels) <= MOST_LEVELS:
        return objectives
    lowest = levels[MOST_LEVELS - 1]
    return {name: max(level, lowest) for name, level in objectives.items()}


def _share(admission: Admission, level: int) -> float:
    """As configured priorities have by default, and between those of the configured ones around it."""
    shares = {each.level: each.share_in_force for each in admission.priorities.values()}
    below = max((share for other, share in shares.items() if other < level), default=0.0)
    above = min((share for other, share in shares.items() if other > level), default=1.0)
    return min(max(usual_share(level), below), above)


def naming_of(config: Config, objectives: Objectives | None = None) -> Naming:
    """Which headers name a request's priority and tenant, as far as somebody vouches for them.

    A name of the configuration wins over an objective of that name: whoever may write objects into the cluster's
    namespace must not redefine what the operator of this sidecar has written, with its limits.
    """
    admission = config.admission
    tenant = () if config.tenants.header is None else (config.tenants.header.lower().encode(),)
    if admission is None:
        return Naming(tenant_headers=tenant)
    own_levels = {name: priority.level for name, priority in admission.priorities.items()}
    levels = dict(objectives or {}) | own_levels
    vouched = config.believes_gateway
    own: tuple[bytes, ...] = () if admission.header is None else (admission.header.lower().encode(),)
    return Naming(
        levels={name.encode(): level for name, level in levels.items()},
        default=0 if admission.default is None else own_levels[admission.default],
        of_routes={route: own_levels[name] for route, name in admission.routes.items()},
        priority_headers=(*own, *names.OBJECTIVE) if vouched else (),
        tenant_headers=(*tenant, *names.FAIRNESS_ID) if vouched else tenant,
        slos={route: _slo_of(objective) for route, objective in admission.slo.items()},
        believes_slos=vouched,
    )
