"""plan.yaml: a plan as people read it, and as `fairlead plan explain` and `diff` read it back."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fairlead.cascade.planner.capacity import Strategy
from fairlead.cascade.planner.hardware import Shape
from fairlead.cascade.planner.plan import Alternative, Plan, StagePlan, faults
from fairlead.cascade.planner.prediction import Latency
from fairlead.errors import UserError
from fairlead.files import replace_file

_HEADING = "# Written by `fairlead plan`; `fairlead plan explain` tells what it means.\n"


class _Replicas(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    tp: int
    pp: int


class _Latency(msgspec.Struct, forbid_unknown_fields=True):
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class _Stage(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    share: float
    gpus: int
    replicas: list[_Replicas]
    latency: _Latency


class _Alternative(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    models: list[str]
    p95_ms: float | None = None
    quality: float = 0.0
    gpu_ms: float = 0.0
    fault: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    objective: str
    thresholds: list[float]
    stages: list[_Stage]
    end_to_end: _Latency
    quality: float
    quality_error: float
    models: list[str]
    utopia: float
    nadir: float
    alternatives: list[_Alternative]
    gpus: int
    gpu_ms: float
    rate_per_s: float
    inputs: str


def write_plan(path: Path, plan: Plan) -> None:
    """Raises UserError if the file cannot be written."""
    document = _File(
        objective=plan.objective,
        thresholds=list(plan.thresholds),
        stages=[
            _Stage(stage.model, round(stage.share, 6), stage.gpus, _replicas(stage.strategy), _rounded(stage.latency))
            for stage in plan.stages
        ],
        end_to_end=_rounded(plan.end_to_end),
        quality=round(plan.quality, 3),
        quality_error=round(plan.quality_error, 3),
        models=list(plan.models),
        utopia=round(plan.utopia, 3),
        nadir=round(plan.nadir, 3),
        alternatives=[_written(each) for each in plan.alternatives],
        gpus=plan.gpus,
        gpu_ms=round(plan.gpu_ms, 1),
        rate_per_s=plan.rate_per_s,
        inputs=plan.inputs,
    )
    text = yaml.safe_dump(msgspec.to_builtins(document), sort_keys=False, default_flow_style=None, width=120)
    try:
        replace_file(path, (_HEADING + text).encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def read_plan(path: Path) -> Plan:
    """Raises UserError for a file that is no sound plan."""
    try:
        document: Any = yaml.safe_load(path.read_bytes())
        file = msgspec.convert(document, _File)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); `fairlead plan` writes plans") from None
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UserError(f"{path}: not a plan: {error}") from None
    stages = tuple(
        StagePlan(stage.model, stage.share, stage.gpus, _strategy(stage.replicas), _latency(stage.latency))
        for stage in file.stages
    )
    problems = faults(file.thresholds, stages, file.gpus)
    if problems:
        raise UserError(f"{path}: not a plan: {'; '.join(problems)}")
    return Plan(
        thresholds=tuple(file.thresholds),
        stages=stages,
        end_to_end=_latency(file.end_to_end),
        quality=file.quality,
        quality_error=file.quality_error,
        rate_per_s=file.rate_per_s,
        gpus=file.gpus,
        gpu_ms=file.gpu_ms,
        models=tuple(file.models),
        utopia=file.utopia,
        nadir=file.nadir,
        alternatives=tuple(_alternative(each) for each in file.alternatives),
        objective=file.objective,
        inputs=file.inputs,
    )


def _replicas(strategy: Strategy) -> list[_Replicas]:
    return [_Replicas(count, shape.tp, shape.pp) for shape, count in strategy]


def _strategy(replicas: list[_Replicas]) -> Strategy:
    return tuple((Shape(each.tp, each.pp), each.count) for each in replicas)


def _written(other: Alternative) -> _Alternative:
    if other.fault:
        return _Alternative(list(other.models), fault=other.fault)
    return _Alternative(list(other.models), round(other.p95_ms, 1), round(other.quality, 3), round(other.gpu_ms, 1))


def _alternative(file: _Alternative) -> Alternative:
    p95_ms = inf if file.p95_ms is None else file.p95_ms
    return Alternative(tuple(file.models), p95_ms, file.quality, file.gpu_ms, file.fault)


def _rounded(latency: Latency) -> _Latency:
    return _Latency(*(round(value, 1) for value in (latency.mean_ms, latency.p50_ms, latency.p95_ms, latency.p99_ms)))


def _latency(file: _Latency) -> Latency:
    return Latency(file.mean_ms, file.p50_ms, file.p95_ms, file.p99_ms)
