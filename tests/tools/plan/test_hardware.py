"""What fits into memory, and how fast it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.tools.plan.hardware import Shape, kv_tokens, pipeline_slot_parameters, shapes_that_fit
from tests.tools.plan.world import settings

WORLD = settings(32, 1.0)
CLUSTER = WORLD.gpus.cluster()
SMALL, MEDIUM, LARGE = (model.model() for model in WORLD.models)


def test_a_model_that_is_larger_than_a_gpu_needs_several() -> None:
    assert Shape(1) in shapes_that_fit(SMALL, CLUSTER, longest_tokens=4000)
    assert min(shape.gpus for shape in shapes_that_fit(MEDIUM, CLUSTER, longest_tokens=4000)) == 2
    assert min(shape.gpus for shape in shapes_that_fit(LARGE, CLUSTER, longest_tokens=4000)) >= 5


def test_what_the_weights_leave_bounds_the_longest_request() -> None:
    tokens = kv_tokens(MEDIUM, Shape(2), CLUSTER)
    assert 0 < tokens < kv_tokens(MEDIUM, Shape(4), CLUSTER)
    assert Shape(2) not in shapes_that_fit(MEDIUM, CLUSTER, longest_tokens=tokens + 1)


def test_tensor_parallelism_stays_inside_a_server() -> None:
    servers_of_four = replace(CLUSTER, gpus_per_server=4)
    assert {shape.tp for shape in shapes_that_fit(SMALL, servers_of_four, longest_tokens=100)} == {1, 2, 4}


def test_tensor_parallelism_is_as_much_faster_as_was_measured() -> None:
    one, four = (pipeline_slot_parameters(SMALL, Shape(tp), CLUSTER) for tp in (1, 4))
    assert one.decode_ms_per_step / four.decode_ms_per_step == pytest.approx(SMALL.tp_speedup[4])
    measured_on_four = replace(SMALL, measured_tp=4)
    assert pipeline_slot_parameters(measured_on_four, Shape(4), CLUSTER).decode_ms_per_step == SMALL.decode_ms_per_step


def test_a_pipeline_lane_pays_for_what_it_sends_on() -> None:
    flat, piped = (pipeline_slot_parameters(MEDIUM, Shape(4, pp), CLUSTER) for pp in (1, 3))
    assert piped.step_overhead_ms == flat.step_overhead_ms + 2 * CLUSTER.hop_ms
    sent_ms = 2 * MEDIUM.activation_bytes_per_token / CLUSTER.link_bytes_per_ms
    assert piped.prefill_ms_per_token == pytest.approx(flat.prefill_ms_per_token + sent_ms)


def test_a_prefix_hit_costs_no_prefill() -> None:
    half = replace(SMALL, prefix_hit_rate=0.5)
    whole_ms = pipeline_slot_parameters(SMALL, Shape(1), CLUSTER).prefill_ms_per_token
    assert pipeline_slot_parameters(half, Shape(1), CLUSTER).prefill_ms_per_token == pytest.approx(whole_ms / 2)
