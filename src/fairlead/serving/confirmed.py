"""Engines that Envoy does not know get nothing: a request that names one would be served by any other."""

from __future__ import annotations

from typing import Final

import structlog

from fairlead.core.endpoint import MOST_PASSED_OVER
from fairlead.core.health import DRAINING, UNCONFIRMED, UNKNOWN_TO_ENVOY
from fairlead.core.pool import Pool
from fairlead.extproc.services import Services
from fairlead.gateway import Host

_FIRST_PAUSE_S: Final = 1.0  # before an endpoint that was passed over may be chosen again, once
_LONGEST_PAUSE_S: Final = 60.0

log = structlog.get_logger("fairlead")


def hosts_of(pool: Pool) -> list[Host]:
    """What Envoy is to know: all but those that only compute prompts for others."""
    return [
        Host(e.address, e.model, DRAINING in e.health.withheld, e.spec.access, e.identity.models)
        for e in pool.endpoints
        if e.spec.role != "prefill"
    ]


def withhold_unconfirmed(services: Services) -> None:
    """Withhold what an Envoy that follows has been sent and has not accepted yet, and nothing that it has."""
    for endpoint in services.router.pool.endpoints:
        is_behind_it = endpoint.spec.role != "prefill"
        endpoint.health.withhold(UNCONFIRMED, active=is_behind_it and not services.envoys.knows(endpoint.address))


class _Pause:
    """Of an endpoint that is withheld, until it is tried again."""

    __slots__ = ("ends_s", "is_over", "seconds")

    def __init__(self, now_s: float, seconds: float) -> None:
        self.seconds = seconds
        self.ends_s = now_s + seconds
        self.is_over = False


class Unserved:
    """Endpoints that were chosen and never answered a request, though they answer probes: reported, and tried again.

    With a list of its own, Envoy may not know them; then it sends their requests to any other engine.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._pauses: dict[str, _Pause] = {}  # by address

    def look(self) -> None:
        """Call it once a second or so."""
        now_s, pool = self._services.clock_s(), self._services.router.pool
        self._pauses = {address: pause for address, pause in self._pauses.items() if address in pool.by_address}
        for endpoint in pool.endpoints:
            pause = self._pauses.get(endpoint.address)
            if UNKNOWN_TO_ENVOY not in endpoint.health.withheld:
                if pause is not None and not endpoint.passed_over:
                    del self._pauses[endpoint.address]
                    log.info("an endpoint that got nothing through Envoy serves now", endpoint=endpoint.address)
            elif pause is None or pause.is_over:  # it was passed over, for the first time or on its trial
                seconds = _FIRST_PAUSE_S if pause is None else min(2 * pause.seconds, _LONGEST_PAUSE_S)
                self._pauses[endpoint.address] = _Pause(now_s, seconds)
                if pause is not None:  # at first Envoy may only need a moment
                    log.error(
                        "an endpoint was chosen and Envoy sent its requests elsewhere; "
                        "does Envoy know its address, and can it reach it?",
                        endpoint=endpoint.address,
                        requests=endpoint.passed_over,
                    )
            elif now_s >= pause.ends_s:
                pause.is_over = True
                endpoint.passed_over = MOST_PASSED_OVER - 1  # one more request tries
                endpoint.health.withhold(UNKNOWN_TO_ENVOY, active=False)
