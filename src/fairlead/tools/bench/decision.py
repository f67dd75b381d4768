"""Part 1: the time from a whole body in hand to the decision, as the request path makes it, without gRPC.

`fairlead.extproc.pick.pick` is timed as it is: parse, facts, candidates, rank, ticket, record. The pool is made up, no
engine is asked. Each measured call finds the pool with the load that the calls before it have left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from fairlead.api.headers import SESSION_ID
from fairlead.api.paths import CHAT_COMPLETIONS
from fairlead.config import parse
from fairlead.core.capability import Capability
from fairlead.core.endpoint import Endpoint, EndpointSpec
from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.extproc.headers import Headers
from fairlead.extproc.pick import Pick, pick
from fairlead.extproc.request import HttpRequest
from fairlead.extproc.services import Services
from fairlead.policies import build_policy
from fairlead.serving.build import build
from fairlead.statistics import quantile
from fairlead.tools.bench.bodies import KINDS, Kind, chat_body
from fairlead.tools.estimates import Slope, slope_within

POLICIES: Final = ("fairlead", "laar")
ENDPOINTS: Final = (8, 64, 1024)
SIZES_KIB: Final = (1, 64, 256, 1024)
MODEL: Final = "bench-model"
ROUTE: Final = "auto"  # asked by name, the body must be rewritten for the chosen model

_BODIES: Final = 3  # of a kind and size, in turn
_WARM_UP: Final = 5
_IN_FLIGHT: Final = 4  # decisions whose load stays, so that ranks are not all ties


class Cell(msgspec.Struct, frozen=True):
    """One row of the matrix."""

    policy: str
    asked: str  # MODEL or ROUTE
    kind: str
    endpoints: int
    body_bytes: int
    size_kib: int
    repeats: int
    median_us: float
    p99_us: float


def cells() -> list[tuple[str, str, Kind, int, int]]:
    """All that is measured: policy, what is asked, kind, endpoints, KiB."""
    whole = [(p, MODEL, k, n, size) for p in POLICIES for k in KINDS for n in ENDPOINTS for size in SIZES_KIB]
    return whole + [("fairlead", ROUTE, k, 64, size) for k in KINDS for size in SIZES_KIB]


def measure(seed: int, cell_budget_s: float, most_repeats: int) -> Iterator[Cell]:
    """Measure every cell for about `cell_budget_s` each, at most `most_repeats` times and at least ten times."""
    for policy, asked, kind, endpoints, size_kib in cells():
        bodies = [chat_body(kind, size_kib * 1024, asked, seed + n) for n in range(_BODIES)]
        decide = _decider(policy, endpoints, seed)
        times_us = sorted(_timed(decide, bodies, cell_budget_s, most_repeats))
        yield Cell(
            policy=policy,
            asked=asked,
            kind=kind,
            endpoints=endpoints,
            body_bytes=len(bodies[0]),
            size_kib=size_kib,
            repeats=len(times_us),
            median_us=quantile(times_us, 0.5),
            p99_us=quantile(times_us, 0.99),
        )


def slopes(measured: list[Cell], policy: str, kind: str) -> tuple[Slope, Slope]:
    """Microseconds an endpoint (with the body held as it is) and a KiB (with the endpoints held as they are)."""
    own = [cell for cell in measured if (cell.policy, cell.kind, cell.asked) == (policy, kind, MODEL)]
    by_endpoint = slope_within((cell.size_kib, cell.endpoints, cell.median_us) for cell in own)
    by_kib = slope_within((cell.endpoints, cell.body_bytes / 1024, cell.median_us) for cell in own)
    return by_endpoint, by_kib


def made_up(policy: str, endpoints: int, seed: int) -> Services:
    """A router over endpoints that are nowhere, and all else that `pick` needs."""
    rng = Random(seed)
    table = {language: tuple(rng.uniform(0.3, 1.0) for _ in BUCKETS) for language in LANGUAGES}
    capability = Capability(table)  # endpoints of one model share it, as they do in a real pool
    pool = Pool([_endpoint(number, rng, capability) for number in range(endpoints)], {ROUTE: (MODEL,)})
    config = parse(f"pool: {{endpoints: [{{address: '{address_of(0)}', model: {MODEL}}}]}}")
    return replace(build(config, Path()), router=Router(pool, build_policy(policy, {}), fallbacks=2, rng=rng))


def request_headers(session: bytes) -> Headers:
    return {
        b":method": b"POST",
        b":path": CHAT_COMPLETIONS.encode(),
        b"content-type": b"application/json",
        SESSION_ID: session,
    }


def address_of(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}:8000"


def _decider(policy: str, endpoints: int, seed: int) -> Callable[[bytes], Pick]:
    shared, headers = made_up(policy, endpoints, seed), request_headers(b"bench-session")

    def decide(body: bytes) -> Pick:
        picked = pick(shared, HttpRequest(CHAT_COMPLETIONS, headers, b"bench-request", body))
        assert isinstance(picked, Pick), picked
        return picked

    return decide


def _endpoint(number: int, rng: Random, capability: Capability) -> Endpoint:
    endpoint = Endpoint(
        EndpointSpec(
            address=address_of(number),
            model=MODEL,
            prefill_ms_per_token=0.05,
            decode_ms_per_token=12.0,
            max_model_len=1 << 20,
            capability=capability,
        )
    )
    endpoint.rtt_ms = rng.uniform(0.2, 80.0)
    return endpoint


def _timed(decide: Callable[[bytes], Pick], bodies: list[bytes], budget_s: float, most: int) -> list[float]:
    for number in range(_WARM_UP):
        decide(bodies[number % len(bodies)]).in_flight.ended(0.0)
    in_flight: list[Pick] = []
    times_us: list[float] = []
    until_s = time.perf_counter() + budget_s
    while len(times_us) < 10 or (len(times_us) < most and time.perf_counter() < until_s):
        body = bodies[len(times_us) % len(bodies)]
        started_ns = time.perf_counter_ns()
        picked = decide(body)
        times_us.append((time.perf_counter_ns() - started_ns) / 1e3)
        in_flight.append(picked)
        if len(in_flight) > _IN_FLIGHT:
            in_flight.pop(0).in_flight.ended(0.0)
    return times_us
