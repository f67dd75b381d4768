"""What a model costs on GPUs: which parallel shapes fit the memory, and how fast one pipeline slot of a shape is.

Tensor parallelism divides times by a measured speed-up K(N), not by N. A pipeline of `pp` stages is `pp` slots
(requests in the pipeline at once), each at the whole model's speed; they share the memory, and each pays for the
activations sent from stage to stage. Source: Cascadia appendix B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.tools.simulate.parameters import EngineParameters

_BLOCK_TOKENS = 256  # engines use 16; fewer, larger blocks give the same times and need fewer steps to simulate


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """One replica: every layer on `tp` GPUs, the layers in `pp` groups."""

    tp: int
    pp: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp

    def __str__(self) -> str:
        return f"TP={self.tp}" + (f", PP={self.pp}" if self.pp > 1 else "")


@dataclass(frozen=True, slots=True)
class Cluster:
    gpus: int
    gpu_memory_bytes: float
    gpus_per_server: int = 8  # tensor parallelism stays inside a server
    memory_use: float = 0.9  # share of a GPU's memory for weights and KV cache
    link_bytes_per_ms: float = 25e6  # between the stages of a pipeline
    hop_ms: float = 0.1  # per step and stage boundary, whatever the volume


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the cascade. Times were measured on `measured_tp` GPUs, without a pipeline."""

    name: str
    weights_bytes: float
    kv_bytes_per_token: float
    prefill_ms_per_token: float
    decode_ms_per_step: float
    decode_ms_per_sequence: float
    step_overhead_ms: float = 1.0
    measured_tp: int = 1
    tp_speedup: Mapping[int, float] = field(default_factory=lambda: {1: 1.0, 2: 1.7, 4: 2.8, 8: 4.2})  # K(N)
    max_pp: int = 4
    activation_bytes_per_token: float = 16_384.0  # hidden size times bytes of a number
    prefix_hit_rate: float = 0.0  # prompt tokens that cost no prefill. Source: Cascadia equation 1
    max_num_seqs: int = 256
    token_budget: int = 8192


def kv_tokens(model: Model, shape: Shape, cluster: Cluster) -> int:
    """Tokens of KV cache that one pipeline slot of `shape` holds; 0 or less: the weights do not fit."""
    free_bytes = shape.gpus * cluster.gpu_memory_bytes * cluster.memory_use - model.weights_bytes
    return int(free_bytes / model.kv_bytes_per_token / shape.pp)


def shapes_that_fit(model: Model, cluster: Cluster, longest_tokens: int) -> list[Shape]:
    """Shapes whose memory takes the weights and the longest request, within servers and the cluster."""
    degrees = [tp for tp in sorted(model.tp_speedup) if tp <= cluster.gpus_per_server]
    shapes = [Shape(tp, pp) for tp in degrees for pp in range(1, model.max_pp + 1)]
    return [
        shape
        for shape in shapes
        if shape.gpus <= cluster.gpus
        and kv_tokens(model, shape, cluster) // _BLOCK_TOKENS * _BLOCK_TOKENS >= longest_tokens
    ]


def pipeline_slot_parameters(model: Model, shape: Shape, cluster: Cluster) -> EngineParameters:
    """The simulated engine that behaves like one pipeline slot of `shape`."""
    speedup = model.tp_speedup[shape.tp] / model.tp_speedup[model.measured_tp]
    boundaries = shape.pp - 1
    transfer_ms = boundaries * model.activation_bytes_per_token / cluster.link_bytes_per_ms
    return EngineParameters(
        prefill_ms_per_token=model.prefill_ms_per_token * (1 - model.prefix_hit_rate) / speedup + transfer_ms,
        decode_ms_per_step=model.decode_ms_per_step / speedup,
        decode_ms_per_sequence=model.decode_ms_per_sequence / speedup + transfer_ms,
        step_overhead_ms=model.step_overhead_ms + boundaries * cluster.hop_ms,
        token_budget=model.token_budget,
        max_num_seqs=model.max_num_seqs,
        block_size=_BLOCK_TOKENS,
        num_blocks=kv_tokens(model, shape, cluster) // _BLOCK_TOKENS,
        max_model_len=1 << 30,  # no limit: prompts too long for the model were found by profiling
    )
