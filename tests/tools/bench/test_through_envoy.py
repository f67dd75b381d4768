"""The whole second part, briefly, with the real Envoy, null processor, sidecar and upstream."""

from __future__ import annotations

import pytest

from fairlead.tools.bench.through_envoy import SHAPES, Effort, measure
from fairlead.tools.bench.variants import ALONE, BY_SOCKET, FAIRLEAD, FAIRLEAD_GRPCIO, REWRITING, VARIANTS


@pytest.mark.stack
@pytest.mark.slow
async def test_every_variant_serves_every_shape_without_an_error_and_its_time_is_counted() -> None:
    effort = Effort(rounds=1, saturated_s=0.3, steady_s=0.6)
    steps = []

    measured = await measure(effort, seed=0, advance=lambda: steps.append(1))

    assert [run.first_error for run in measured.runs if run.errors] == []
    assert {(run.variant, run.shape) for run in measured.runs} == {
        (variant, shape) for variant in VARIANTS for shape in SHAPES
    }
    assert all(run.requests > 0 for run in measured.runs)
    # A busy machine may keep the load generator away for a whole run, and the kernel counts CPU in ticks of 10 ms.
    assert {run.variant for run in measured.runs if run.requests_per_s > 0} == set(VARIANTS)
    assert {run.variant for run in measured.runs if run.envoy_cpu_us > 0} == set(VARIANTS)
    assert {run.variant for run in measured.runs if run.decision_us > 0} == {
        FAIRLEAD,
        FAIRLEAD_GRPCIO,
        REWRITING,
        BY_SOCKET,
    }
    assert {run.variant for run in measured.runs if run.sidecar_cpu_us > 0} == set(VARIANTS) - {ALONE}
    assert set(measured.idle_cpu_ms_per_s) == set(VARIANTS) - {ALONE}
    assert len(steps) == effort.runs()
