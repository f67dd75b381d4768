"""The rate limit of a request's tenant: paid before it waits or begins, and told to the client in OpenAI's headers."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Final

import msgspec

from fairlead.admission.admission import retry_after_s
from fairlead.admission.rates import Denied, Level, Unit
from fairlead.api import refusals
from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.extproc.exchange import Exchange
from fairlead.extproc.pick import Refused

_NAMES: Final[dict[Unit, bytes]] = {"tokens": b"tokens", "engine_ms": b"engine-ms"}
_MINUTE_S: Final = 60


def paid(exchange: Exchange, name: str | None, route: str, facts: RequestFacts) -> Refused | None:
    """Pay for a request for `name`. Whether the tenant has had its share of this minute, as its answer; None: go on."""
    services = exchange.services
    if not services.router.pool.knows(name):
        return None
    admission = services.admission
    facts = _paying(facts)
    taken = services.rates.take(
        services.waiting.naming.tenant(exchange.headers),
        facts.tokens + admission.expected_answer_tokens(name, facts),
        admission.expected_ms(admission.lane(name), facts),
        services.clock_s(),
        always=services.cascades.is_inner(exchange.headers),  # part of a request that was granted
    )
    if isinstance(taken, Denied):
        limit = next(level.limit for level in taken.levels if level.unit == taken.unit)
        wait_s = retry_after_s(taken.retry_in_s * 1e3)
        return Refused(refusals.rate_limited(taken.unit, limit, wait_s, headers(taken.levels)), route)
    exchange.charge = taken
    return None


def began(exchange: Exchange, in_flight: InFlight) -> None:
    """It has an endpoint, so what it takes there is known better."""
    charge = exchange.charge
    if charge is not None:
        engine_ms = exchange.services.admission.engine_ms(in_flight, _paying(in_flight.request))
        exchange.charge = exchange.services.rates.settle(charge, charge.tokens, engine_ms, exchange.services.clock_s())


def _paying(facts: RequestFacts) -> RequestFacts:
    """Who had short answers pays for usual ones: else, after some of them, long ones would cost next to nothing."""
    return facts if facts.answer_length >= 1 else msgspec.structs.replace(facts, answer_length=1.0)


def limit_headers(exchange: Exchange) -> tuple[tuple[bytes, bytes], ...]:
    """What is left to the tenant, for the response; nothing without a limit."""
    charge = exchange.charge
    if charge is None:
        return ()
    return headers(exchange.services.rates.levels(charge, exchange.services.clock_s()))


def headers(levels: Iterable[Level]) -> tuple[tuple[bytes, bytes], ...]:
    """As OpenAI writes them; engine time has the same with a name of its own."""
    return tuple(
        (b"x-ratelimit-%s-%s" % (what, _NAMES[level.unit]), value)
        for level in levels
        for what, value in (
            (b"limit", b"%d" % level.limit),
            (b"remaining", b"%d" % max(0.0, level.left)),
            (b"reset", _duration(level.full_in_s)),
        )
    )


def _duration(seconds: float) -> bytes:
    """As `6m0s`, `17s` or `120ms`."""
    if seconds < 1:
        return b"%dms" % ceil(seconds * 1e3)
    minutes, left = divmod(ceil(seconds), _MINUTE_S)
    return b"%dm%ds" % (minutes, left) if minutes else b"%ds" % left
