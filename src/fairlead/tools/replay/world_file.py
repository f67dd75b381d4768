"""World files: YAML with the engines, their regions, and what the router observes; errors name the key.

Engines are named by `fairlead calibrate`'s file, or by the one that comes with Fairlead, or spelled out in ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from fairlead.core.capability import Capability, parse_capability_file
from fairlead.core.endpoint import Role
from fairlead.errors import UserError
from fairlead.tools.replay.calibration import CalibrationFile
from fairlead.tools.replay.disturbances import Foreign, Pace
from fairlead.tools.replay.network import Link, RttSeries, constant, read_series
from fairlead.tools.replay.world import DEFAULT_KV_TOKENS, EngineSpec, Observation, Retries, Sidecars, World
from fairlead.tools.simulate.parameters import EngineParameters

_Count = Annotated[int, Meta(ge=1, le=10_000)]
_Tokens = Annotated[int, Meta(ge=1)]
_Ms = Annotated[float, Meta(ge=0)]


class _Engine(msgspec.Struct, forbid_unknown_fields=True):
    """How an engine differs from the calibrated one, or from the defaults if none is named."""

    calibrated: str | None = None
    prefill_ms_per_token: _Ms | None = None
    decode_ms_per_step: _Ms | None = None
    decode_ms_per_sequence: _Ms | None = None
    step_overhead_ms: _Ms | None = None
    request_overhead_ms: _Ms | None = None
    prefill_ms_per_1k_before: _Ms | None = None
    decode_ms_per_1k_held: _Ms | None = None
    token_budget: _Tokens | None = None
    max_num_seqs: _Tokens | None = None
    max_model_len: _Tokens | None = None
    kv_tokens: _Tokens = DEFAULT_KV_TOKENS


class _Group(msgspec.Struct, forbid_unknown_fields=True):
    count: _Count = 1
    model: str = "m"
    region: str = ""
    engine: str | _Engine = msgspec.field(default_factory=_Engine)
    role: Role = "both"


class _Retries(msgspec.Struct, forbid_unknown_fields=True):
    right: str
    believed: str | None = None
    most_attempts: _Count = 10
    deterministic: bool = True


class _File(msgspec.Struct, forbid_unknown_fields=True):
    pool: Annotated[list[_Group], Meta(min_length=1)]
    engines: dict[str, _Engine] = {}
    calibration: str | None = None
    regions: dict[str, _Ms | str] = {}
    routes: dict[str, Annotated[list[str], Meta(min_length=1)]] = {}
    asked: str | None = None
    observe: Observation = Observation()
    retries: _Retries | None = None
    pace: Pace = Pace()
    foreign: Foreign = Foreign()
    sidecars: Sidecars = Sidecars()
    link: Link = Link()


def read_world(path: Path) -> World:
    """Files named in it are relative to it. Raises UserError that names the key."""
    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}") from None
    return _world(file, path)


@cache
def shipped_engines() -> Mapping[str, EngineParameters]:
    """Engines of the calibration that comes with Fairlead, by name."""
    return _engines_of((resources.files("fairlead.tools.replay") / "engines.json").read_bytes())


def _world(file: _File, path: Path) -> World:
    folder = path.parent
    calibrated = dict(shipped_engines())
    if file.calibration is not None:
        calibrated |= _engines_of(_bytes(folder / file.calibration, f"{path}: calibration"))
    endpoints: list[EngineSpec] = []
    for index, group in enumerate(file.pool):
        where = f"{path}: pool[{index}]"
        engine, kv_tokens = _engine(group.engine, file.engines, calibrated, where)
        if group.region and group.region not in file.regions:
            raise UserError(f'{where}.region: "{group.region}" is not under regions; write its round trip there')
        for _ in range(group.count):
            number = len(endpoints)
            address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:8000"
            endpoints.append(EngineSpec(address, group.model, group.region, engine, kv_tokens, group.role))
    routes = {name: tuple(models) for name, models in file.routes.items()}
    return World(
        endpoints=tuple(endpoints),
        regions={name: _series(rtt, folder) for name, rtt in file.regions.items()},
        routes=routes,
        asked=_asked(file, endpoints, routes, path),
        observation=file.observe,
        retries=_retries(file.retries, folder, f"{path}: retries") if file.retries else Retries(),
        pace=file.pace,
        foreign=file.foreign,
        sidecars=file.sidecars,
        link=file.link,
    )


def _asked(file: _File, endpoints: list[EngineSpec], routes: Mapping[str, Any], path: Path) -> str:
    known = [*routes, *dict.fromkeys(spec.model for spec in endpoints)]
    asked = file.asked or known[0]
    if asked not in known:
        raise UserError(f'{path}: asked: "{asked}" is neither a model nor a route; known names: {", ".join(known)}')
    return asked


def _engine(
    named: str | _Engine, engines: Mapping[str, _Engine], calibrated: Mapping[str, EngineParameters], where: str
) -> tuple[EngineParameters, int]:
    if isinstance(named, str):
        if named not in engines and named not in calibrated:
            known = ", ".join([*engines, *calibrated])
            raise UserError(f'{where}.engine: no engine is called "{named}"; known names: {known}')
        described = engines.get(named) or _Engine(calibrated=named)
    else:
        described = named
    base = EngineParameters()
    if described.calibrated is not None:
        if described.calibrated not in calibrated:
            raise UserError(f'{where}.engine: no engine "{described.calibrated}" was calibrated')
        base = calibrated[described.calibrated]
    changed = {
        name: value
        for name, value in msgspec.structs.asdict(described).items()
        if name not in ("calibrated", "kv_tokens") and value is not None
    }
    try:
        return replace(base, **changed), described.kv_tokens
    except ValueError as error:
        raise UserError(f"{where}.engine: {error}") from None


def _series(rtt: float | str, folder: Path) -> RttSeries:
    return constant(rtt) if isinstance(rtt, float | int) else read_series(folder / rtt)


def _retries(file: _Retries, folder: Path, where: str) -> Retries:
    right = _capabilities(folder / file.right, f"{where}.right")
    believed = right if file.believed is None else _capabilities(folder / file.believed, f"{where}.believed")
    return Retries(right, believed, file.most_attempts, file.deterministic)


def _capabilities(path: Path, where: str) -> Mapping[str, Capability]:
    try:
        return parse_capability_file(_bytes(path, where)).models
    except ValueError as error:
        raise UserError(f"{where}: {path}: {error}") from None


def _engines_of(data: bytes) -> Mapping[str, EngineParameters]:
    try:
        file = msgspec.json.decode(data, type=CalibrationFile)
        return {name: engine.parameters() for name, engine in file.engines.items()}
    except (msgspec.DecodeError, ValueError) as error:
        raise UserError(f"calibration: {error}; write the file with `fairlead calibrate`") from None


def _bytes(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{where}: {path} cannot be read ({error.strerror})") from None
