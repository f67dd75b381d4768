"""What is compared with what was aimed at, and whether it holds. A target that is missed is reported, not hidden."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from fairlead.tools.bench.decision import MODEL, Cell
from fairlead.tools.bench.through_envoy import SATURATED, STEADY_RATE_PER_S, Run, Shape
from fairlead.tools.bench.variants import ALONE, FAIRLEAD, FAIRLEAD_GRPCIO
from fairlead.tools.estimates import Spread, spread

MOST_DECISION_US: Final = 500.0
MOST_SIDECAR_CPU_US: Final = {"1 KB": 170.0, "64 KB": 300.0, "256 KB": 600.0}
LEAST_GAIN: Final = {"1 KB": 3.0, "64 KB": 2.3, "256 KB": 2.0}
MOST_ADDED_P50_US: Final = 1000.0


class Target(msgspec.Struct, frozen=True):
    what: str
    aim: str
    measured: str
    holds: bool


def decision_targets(cells: Sequence[Cell]) -> Iterator[Target]:
    at = [c for c in cells if (c.asked, c.endpoints, c.size_kib) == (MODEL, 64, 256)]
    for kind in dict.fromkeys(cell.kind for cell in at):
        slowest = max((cell for cell in at if cell.kind == kind), key=lambda cell: cell.median_us)
        yield Target(
            what=f"Decision, 64 endpoints, 256 KB, {kind}",
            aim=f"< {MOST_DECISION_US / 1e3:g} ms",
            measured=f"{slowest.median_us / 1e3:.2f} ms ({slowest.policy}, the slower policy)",
            holds=slowest.median_us < MOST_DECISION_US,
        )


def envoy_targets(runs: Sequence[Run]) -> Iterator[Target]:
    for shape in SATURATED:
        cpu_us = spread([run.sidecar_cpu_us for run in _by_round(runs, shape, FAIRLEAD).values()])
        yield Target(
            what=f"CPU of the sidecar a request, {shape}, saturated",
            aim=f"<= {MOST_SIDECAR_CPU_US[shape]:.0f} µs",
            measured=cpu_us.text() + " µs",
            holds=cpu_us.median <= MOST_SIDECAR_CPU_US[shape],
        )
        gain = share_of(runs, shape, FAIRLEAD, FAIRLEAD_GRPCIO)
        yield Target(
            what=f"Requests a second, {shape}, against `listen.server: grpcio`",
            aim=f">= {LEAST_GAIN[shape]:g} times",
            measured=gain.text(2) + " times",
            holds=gain.median >= LEAST_GAIN[shape],
        )
    added = added_us(runs, FAIRLEAD, "p50_us")
    yield Target(
        what=f"Added p50 at {STEADY_RATE_PER_S:g} requests a second, against Envoy alone",
        aim=f"< {MOST_ADDED_P50_US / 1e3:g} ms",
        measured=Spread(*(value / 1e3 for value in added)).text(2) + " ms",
        holds=added.median < MOST_ADDED_P50_US,
    )


def share_of(runs: Sequence[Run], shape: Shape, variant: str, base: str) -> Spread:
    """Requests a second of `variant` over those of `base`, each ratio within one round."""
    rates, base_rates = _by_round(runs, shape, variant), _by_round(runs, shape, base)
    return spread([rates[n].requests_per_s / base_rates[n].requests_per_s for n in rates])


def added_us(runs: Sequence[Run], variant: str, quantile: str) -> Spread:
    """Latency at the fixed rate above that of Envoy alone, each difference within one round."""
    own, alone = _by_round(runs, "steady", variant), _by_round(runs, "steady", ALONE)
    return spread([getattr(own[n], quantile) - getattr(alone[n], quantile) for n in own])


def _by_round(runs: Sequence[Run], shape: Shape, variant: str) -> dict[int, Run]:
    return {run.round: run for run in runs if (run.shape, run.variant) == (shape, variant)}
