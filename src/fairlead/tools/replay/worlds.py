"""Worlds by name, in which the truth differs from what the cost assumes.

`plain` is the world that the cost describes, of equal engines; in `mixed` it describes each of three kinds. Each other
one breaks one assumption, and `worst` all at once; sizes are ours, chosen before any policy was run in them: attention
as on an 8B model, where a prompt of 32,000 tokens takes twice as long as 32 prompts of 1,000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from fairlead.errors import UserError
from fairlead.tools.replay.disturbances import Foreign, Pace
from fairlead.tools.replay.world import Sidecars, World, alike
from fairlead.tools.replay.world_file import read_world
from fairlead.tools.simulate.parameters import EngineParameters

ENGINES: Final = 8
_SMALL_CACHE_TOKENS: Final = 150_000


class _Accelerator(NamedTuple):
    """Its times over those of an A100: of prefill by dense FP16 operations, of decoding by memory bandwidth."""

    prefill: float
    decode: float


_A100: Final = _Accelerator(1.0, 1.0)  # 312 TFLOPS, 2.0 TB/s
_L40S: Final = _Accelerator(0.86, 2.4)  # 362 TFLOPS, 0.86 TB/s
_H20: Final = _Accelerator(2.1, 0.5)  # 148 TFLOPS, 4.0 TB/s
_MIXED: Final = (_A100, _L40S, _H20, _L40S, _H20, _A100, _L40S, _H20)

Change = Callable[[World], World]


def _with_engines(world: World, change: Callable[[EngineParameters], EngineParameters]) -> World:
    specs = [msgspec.structs.replace(spec, engine=change(spec.engine)) for spec in world.endpoints]
    return msgspec.structs.replace(world, endpoints=tuple(specs))


def _with_observation(world: World, **fields: float) -> World:
    return msgspec.structs.replace(world, observation=msgspec.structs.replace(world.observation, **fields))


def _plain(world: World) -> World:
    return world


def _quadratic(world: World) -> World:
    return _with_engines(world, lambda engine: replace(engine, prefill_ms_per_1k_before=0.006))


def _held(world: World) -> World:
    return _with_engines(world, lambda engine: replace(engine, decode_ms_per_1k_held=0.06))


def _noisy(world: World) -> World:
    return msgspec.structs.replace(world, pace=Pace(noise=0.4))


def _drifting(world: World) -> World:
    return msgspec.structs.replace(world, pace=Pace(drift=0.5, period_s=600.0))


def _stale(world: World) -> World:
    return _with_observation(world, scrape_s=5.0, lost_reports=0.3, token_error=0.3, index_capacity=1.5)


def _strangers(world: World) -> World:
    return msgspec.structs.replace(world, sidecars=Sidecars(count=3))


def _sharing(world: World) -> World:
    return msgspec.structs.replace(world, sidecars=Sidecars(count=3, load_every_s=0.1))


def _rarely_sharing(world: World) -> World:
    return msgspec.structs.replace(world, sidecars=Sidecars(count=3, load_every_s=0.5))


def _foreign(world: World) -> World:
    return msgspec.structs.replace(world, foreign=Foreign(requests_per_s=0.5, prompt_tokens=3000, output_tokens=250))


def _small_caches(world: World) -> World:
    specs = [msgspec.structs.replace(spec, kv_tokens=_SMALL_CACHE_TOKENS) for spec in world.endpoints]
    return msgspec.structs.replace(world, endpoints=tuple(specs))


def _mixed(world: World) -> World:
    def of_kind(engine: EngineParameters, kind: _Accelerator) -> EngineParameters:
        return replace(
            engine,
            prefill_ms_per_token=engine.prefill_ms_per_token * kind.prefill,
            decode_ms_per_step=engine.decode_ms_per_step * kind.decode,
            decode_ms_per_sequence=engine.decode_ms_per_sequence * kind.decode,
        )

    mixed = zip(world.endpoints, cycle(_MIXED), strict=False)
    specs = [msgspec.structs.replace(spec, engine=of_kind(spec.engine, kind)) for spec, kind in mixed]
    return msgspec.structs.replace(world, endpoints=tuple(specs))


def _unlabelled(world: World) -> World:
    return _with_observation(_mixed(world), kinds_configured=False)


def _worst(world: World) -> World:
    for change in (_quadratic, _held, _stale, _strangers, _foreign):
        world = change(world)
    return msgspec.structs.replace(world, pace=Pace(noise=0.4, drift=0.5, period_s=600.0))


CHANGES: Final[Mapping[str, Change]] = {
    "plain": _plain,
    "quadratic": _quadratic,  # prefill time grows with the square of a prompt's length
    "held": _held,  # a decoding step grows with the tokens that its requests hold
    "noisy": _noisy,  # each step takes some other time than the last one like it
    "drifting": _drifting,  # engines become slower and faster, by up to 1.65 times, over ten minutes
    "stale": _stale,  # reports 5 s old and some lost, token counts estimated, caches smaller than they are thought
    "strangers": _strangers,  # three sidecars that do not know of each other
    "sharing": _sharing,  # three sidecars whose load is known to each other within 0.1 s, as over Redis (`redis.load`)
    "rarely-sharing": _rarely_sharing,  # within 0.5 s, as over a Redis in another region
    "foreign": _foreign,  # other traffic at the engines
    "small-caches": _small_caches,  # 150,000 tokens each
    "mixed": _mixed,  # two A100, three L40S and three H20, by their data sheets, each with its times configured
    "unlabelled": _unlabelled,  # as `mixed`, and nobody has said that the engines differ
    "worst": _worst,  # all of it but the small caches, of equal engines; the sidecars do not know of each other
}


def named_world(name: str) -> World:
    """Raises KeyError for another name than those of CHANGES."""
    return CHANGES[name](alike(ENGINES))


def world_called(name: str | None) -> World:
    """The world of a file, or else of that name; None is `plain`. Raises UserError for neither, or a faulty file."""
    if name is None:
        return named_world("plain")
    if name in CHANGES and not Path(name).exists():
        return named_world(name)
    if not Path(name).exists():
        raise UserError(f"--world {name}: no such file, and no world of that name; known names: {', '.join(CHANGES)}")
    return read_world(Path(name))
