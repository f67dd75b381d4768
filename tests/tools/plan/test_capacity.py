"""The best use of GPUs is found over every set of replicas, not only over equal ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.tools.plan.capacity import best_use, fixed_use, gpus_of
from fairlead.tools.plan.hardware import Shape
from fairlead.tools.plan.replica_load import Curve

SHAPES = (Shape(1), Shape(2), Shape(2, 2), Shape(3))
GPUS = 7


def curve(idle_ms: float, most_per_ms: float) -> Curve:
    loads = np.array([0.02, 0.5, 0.92])
    return Curve(loads * most_per_ms, idle_ms * np.array([1.0, 1.5, 4.0]), most_per_ms)


curves = st.fixed_dictionaries(
    {shape: st.builds(curve, st.floats(10, 1000), st.floats(0.001, 0.1)) for shape in SHAPES}
)


@settings(max_examples=40, deadline=None)
@given(curves, st.floats(0.0005, 0.4))
def test_no_set_of_replicas_is_better(of_shapes: dict[Shape, Curve], rate_per_ms: float) -> None:
    capacity = best_use(of_shapes, GPUS)
    table = capacity.latency_ms(rate_per_ms)
    assert (np.diff(table[np.isfinite(table)]) <= 0).all()
    for counts in itertools.product(*(range(GPUS // shape.gpus + 1) for shape in SHAPES)):
        strategy = tuple((shape, count) for shape, count in zip(SHAPES, counts, strict=True) if count)
        if 0 < gpus_of(strategy) <= GPUS:
            assert (
                fixed_use(of_shapes, strategy, GPUS).latency_ms(rate_per_ms)[GPUS] >= table[gpus_of(strategy)] * 0.999
            )


@settings(max_examples=40, deadline=None)
@given(curves, st.floats(0.0005, 0.4), st.integers(1, GPUS))
def test_the_replicas_keep_what_the_table_says(of_shapes: dict[Shape, Curve], rate_per_ms: float, gpus: int) -> None:
    capacity = best_use(of_shapes, GPUS)
    promised_ms = capacity.latency_ms(rate_per_ms)[gpus]
    if not np.isfinite(promised_ms):
        return
    strategy = capacity.strategy(gpus, rate_per_ms)
    assert gpus_of(strategy) <= gpus
    kept_ms = fixed_use(of_shapes, strategy, GPUS).latency_ms(rate_per_ms)[gpus_of(strategy)]
    assert kept_ms == pytest.approx(promised_ms)
