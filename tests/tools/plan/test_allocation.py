"""The dynamic program and the integer program find the same allocations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.tools.plan.allocation import Floats, by_dynamic_program, by_integer_program


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Floats], list[float]]:
    """Latencies that never grow with GPUs, and start where the model fits."""
    models, budget = draw(st.integers(1, 4)), draw(st.integers(0, 10))
    tables = []
    for _ in range(models):
        values = draw(st.lists(st.integers(1, 2000), min_size=budget + 1, max_size=budget + 1))
        table = np.array(sorted(values, reverse=True), dtype=float)
        table[: draw(st.integers(0, min(3, budget)))] = np.inf
        tables.append(table)
    shares = draw(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=models, max_size=models))
    return tables, shares


@settings(max_examples=150, deadline=None)
@given(problems())
def test_both_ways_agree_and_nothing_is_better(problem: tuple[list[Floats], list[float]]) -> None:
    tables, shares = problem
    budget = len(tables[0]) - 1
    ways = [way(tables, shares) for way in (by_dynamic_program, by_integer_program)]
    possible = []
    for gpus in itertools.product(range(budget + 1), repeat=len(tables)):
        if sum(gpus) <= budget:
            reached = [float(table[count]) for table, count in zip(tables, gpus, strict=True)]
            weighted = sum(share * ms for share, ms in zip(shares, reached, strict=True) if np.isfinite(ms))
            possible.append((max(reached), weighted, sum(gpus)))
    best = min(possible)
    for allocation in ways:
        if allocation is None:
            assert not np.isfinite(best[0])
        else:
            assert sum(allocation.gpus) == best[2]
            assert (allocation.latency_ms, allocation.weighted_ms) == pytest.approx(best[:2])
