"""The dynamic program and the integer program find the same allocations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from fairlead.tools.plan.allocation import Allocation, Floats, allocated, by_dynamic_program


def by_integer_program(latency_ms: Sequence[Floats], shares: Sequence[float]) -> Allocation | None:
    """By `scipy.optimize.milp`: x[i, f] says that model i gets f GPUs; one goal after the other."""
    budget = len(latency_ms[0]) - 1
    models = len(latency_ms)
    table = np.concatenate(latency_ms)
    possible = np.isfinite(table)
    times_ms = np.where(possible, table, 0.0)
    columns = len(table) + 1  # the last variable is the maximum latency
    one_each = np.zeros((models, columns))
    below_maximum = np.zeros((models, columns))
    for model in range(models):
        own = slice(model * (budget + 1), (model + 1) * (budget + 1))
        one_each[model, own] = 1
        below_maximum[model, own] = times_ms[own]
        below_maximum[model, -1] = -1
    used = np.append(np.tile(np.arange(budget + 1.0), models), 0.0)
    maximum = np.append(np.zeros(len(table)), 1.0)
    weighted = np.append(np.repeat(np.asarray(shares, dtype=float), budget + 1) * times_ms, 0.0)
    constraints = [
        LinearConstraint(one_each, 1, 1),
        LinearConstraint(used[None, :], 0, budget),
        LinearConstraint(below_maximum, -np.inf, 0),
    ]
    integrality = np.append(np.ones(len(table)), 0)
    bounds = Bounds(np.zeros(columns), np.append(possible.astype(float), np.inf))
    for goal in (maximum, weighted, used):
        solved = milp(goal, constraints=constraints, integrality=integrality, bounds=bounds)
        if not solved.success:
            return None
        # The solver is exact to a tolerance only.
        constraints.append(LinearConstraint(goal[None, :], -np.inf, solved.fun + 1e-7 * (1 + abs(solved.fun))))
    chosen = solved.x[:-1].reshape(models, budget + 1).argmax(axis=1)
    return allocated([int(gpus) for gpus in chosen], latency_ms)


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
            chosen = zip(shares, tables, allocation.gpus, strict=True)
            weighted = sum(share * float(table[count]) for share, table, count in chosen)
            assert (allocation.latency_ms, weighted) == pytest.approx(best[:2])
