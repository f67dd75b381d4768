"""The file that describes what may be planned: models in order of size, GPUs, and the traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PositiveInt, model_validator

from fairlead.config import ConfigError, parse_as
from fairlead.section import Section
from fairlead.tools.plan.capacity import Strategy
from fairlead.tools.plan.hardware import Cluster, Model, Shape

_GIB = 1 << 30
_KIB = 1 << 10
_GB_PER_S = 1e6  # bytes per millisecond

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ReplicaSettings(Section):
    """Existing replicas, for `--fixed-deployment`."""

    count: PositiveInt
    tp: PositiveInt = 1
    pp: PositiveInt = 1


class ModelSettings(Section):
    """Times as measured on `measured_tp` GPUs; `fairlead calibrate` fits them to measurements."""

    name: Annotated[str, Field(min_length=1)]
    weights_gib: Positive
    kv_kib_per_token: Positive
    prefill_ms_per_token: NotNegative
    decode_ms_per_step: NotNegative
    decode_ms_per_sequence: NotNegative = 0.0
    step_overhead_ms: Positive = 1.0
    measured_tp: PositiveInt = 1
    tp_speedup: dict[PositiveInt, Positive] = Field(default={1: 1.0, 2: 1.7, 4: 2.8, 8: 4.2})
    max_pp: PositiveInt = 4
    activation_kib_per_token: Positive = 16.0
    prefix_hit_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    max_num_seqs: Annotated[int, Field(ge=1, le=8192)] = 256
    replicas: Annotated[tuple[ReplicaSettings, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _speedups_cover_the_measurement(self) -> Self:
        if self.measured_tp not in self.tp_speedup:
            raise ValueError(f"tp_speedup has no entry for {self.measured_tp}, the measured_tp; add one")
        return self

    def model(self) -> Model:
        return Model(
            name=self.name,
            weights_bytes=self.weights_gib * _GIB,
            kv_bytes_per_token=self.kv_kib_per_token * _KIB,
            prefill_ms_per_token=self.prefill_ms_per_token,
            decode_ms_per_step=self.decode_ms_per_step,
            decode_ms_per_sequence=self.decode_ms_per_sequence,
            step_overhead_ms=self.step_overhead_ms,
            measured_tp=self.measured_tp,
            tp_speedup=self.tp_speedup,
            max_pp=self.max_pp,
            activation_bytes_per_token=self.activation_kib_per_token * _KIB,
            prefix_hit_rate=self.prefix_hit_rate,
            max_num_seqs=self.max_num_seqs,
        )

    def strategy(self) -> Strategy:
        return tuple((Shape(each.tp, each.pp), each.count) for each in self.replicas)


class GpuSettings(Section):
    count: PositiveInt
    memory_gib: Positive
    per_server: PositiveInt = 8
    memory_use: Annotated[float, Field(gt=0, le=1)] = 0.9
    link_gb_per_s: Positive = 25.0  # between servers, for pipelines

    def cluster(self) -> Cluster:
        return Cluster(
            gpus=self.count,
            gpu_memory_bytes=self.memory_gib * _GIB,
            gpus_per_server=self.per_server,
            memory_use=self.memory_use,
            link_bytes_per_ms=self.link_gb_per_s * _GB_PER_S,
        )


class CascadeSettings(Section):
    gpus: GpuSettings
    models: Annotated[tuple[ModelSettings, ...], Field(min_length=2, max_length=8, strict=False)]
    rate_per_s: Positive
    judge_ms: NotNegative = 0.0  # time that a judgement takes

    @model_validator(mode="after")
    def _each_model_once(self) -> Self:
        names = [model.name for model in self.models]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f'models: "{twice}" is there twice; remove one')
        return self


def load_settings(path: Path) -> CascadeSettings:
    """Read and validate `path`. Raises ConfigError, which names the line and what to change."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); see docs/cascade.md for an example") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    return parse_as(CascadeSettings, text, str(path), "models", "docs/cascade.md")
