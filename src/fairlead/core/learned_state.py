"""What a learner knows, as a value that outlives the process: samples, not conclusions, so a new version may conclude
differently. Times are of the clock of the process that wrote it, which it names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import zip_longest
from operator import truediv
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from fairlead.core.answer_times import EQUAL, Line, Ratios, Work
from fairlead.core.learned_times import MOST_WORKS, EngineTimes, ModelTimes, Sample, ratios_of
from fairlead.core.learning import Learner
from fairlead.core.pool import Pool
from fairlead.core.running import WINDOW, Running
from fairlead.core.text_kinds import KINDS
from fairlead.core.token_model import SAMPLES_OF_A_KIND, TokenSample

VERSION: Final = 2
_MOST_ENGINE_SAMPLES: Final = 32  # of each kind
_Amount = Annotated[float, Meta(ge=0, le=1e12)]
_Factor = Annotated[float, Meta(gt=0, le=1e12)]
_Time = Annotated[float, Meta(ge=-1e12, le=1e12)]
_Window = Annotated[list[_Amount], Meta(max_length=WINDOW)]
_EngineSamples = Annotated[list[Work], Meta(max_length=_MOST_ENGINE_SAMPLES)]


class ModelState(msgspec.Struct, frozen=True, gc=False):
    works: Annotated[list[Work], Meta(max_length=MOST_WORKS)]  # as they would be at an engine of which the line holds
    line: tuple[_Amount, Annotated[float, Meta(gt=0, le=1e12)], Annotated[float, Meta(gt=0, le=1e12)], _Amount]
    knows_prefill: bool
    knows_decode: bool
    answer_tokens: _Window
    adapter_load_ms: _Window = []
    prefill_growth: Annotated[float, Meta(ge=0, le=1)] = 0.0
    addresses: Annotated[list[str | None], Meta(max_length=MOST_WORKS)] = []  # of the works' engines, where known
    slower: Annotated[dict[str, tuple[_Factor, _Factor]], Meta(max_length=MOST_WORKS)] = {}  # than the line, these


class EngineState(msgspec.Struct, frozen=True, gc=False):
    address: str
    model: str
    prefill: _EngineSamples
    decode: _EngineSamples
    adapter_load_ms: _Window = []


class LearnedState(msgspec.Struct, frozen=True, gc=False):
    version: Literal[2]
    saved_at: _Time  # Unix time
    clock_s: _Time  # of the router's clock, then
    models: dict[str, ModelState]
    engines: list[EngineState]
    tokens: dict[str, Annotated[list[TokenSample], Meta(max_length=SAMPLES_OF_A_KIND * len(KINDS))]]
    draining: Annotated[list[str], Meta(max_length=10_000)] = []


def pieces(learner: Learner, *, now_s: float, unix_s: float, draining: Collection[str] = ()) -> Iterator[bytes]:
    """The state in JSON, in parts of a tenth of a millisecond of work: they are made on the event loop that learns.

    What is learned, and who comes and goes, between two parts may be in it or not.
    """
    encoded = msgspec.json.encode
    yield b'{"version":%d,"saved_at":%b,"clock_s":%b,"models":{' % (VERSION, encoded(unix_s), encoded(now_s))
    addresses: dict[EngineTimes | None, str] = {engine: address for (address, _), engine in learner.engines.items()}
    models = list(learner.models.items())
    yield from _in_a_row(encoded(name) + b":" + encoded(_of_model(each, addresses)) for name, each in models)
    yield b'},"engines":['
    yield from _in_a_row(encoded(_of_engine(*which, each)) for which, each in list(learner.engines.items()))
    yield b'],"tokens":{'
    tokens = list(learner.tokens.items())
    yield from _in_a_row(encoded(name) + b":" + encoded(learned.samples) for name, learned in tokens)
    yield b'},"draining":' + encoded(sorted(draining)) + b"}"


def _in_a_row(values: Iterable[bytes]) -> Iterator[bytes]:
    for number, value in enumerate(values):
        yield b"," + value if number else value


def _of_model(model: ModelTimes, addresses: Mapping[EngineTimes | None, str]) -> ModelState:
    line, samples = model.line, list(model.samples)[-MOST_WORKS:]
    of = [addresses.get(each.engine) for each in samples]
    return ModelState(
        [each.by_line() for each in samples],
        (line.fixed_ms, line.prefill_ms, line.alone_ms, line.slowdown),
        model.knows_prefill,
        model.knows_decode,
        list(model.answer_tokens.kept),
        list(model.adapter_load_ms.kept),
        line.growth,
        of,
        {address: each.slower for address, each in zip(of, samples, strict=True) if address is not None},
    )


def _of_engine(address: str, model: str, engine: EngineTimes) -> EngineState:
    return EngineState(
        address,
        model,
        list(engine.prefill.samples)[-_MOST_ENGINE_SAMPLES:],
        list(engine.decode.samples)[-_MOST_ENGINE_SAMPLES:],
        list(engine.adapter_load_ms.kept),
    )


def restore(state: LearnedState, learner: Learner, pool: Pool, *, now_s: float, unix_s: float) -> None:
    """Put `state` in force for the endpoints of `pool`; what it knows of others is left out."""
    later_s = now_s - state.clock_s - max(0.0, unix_s - state.saved_at)
    for endpoint in pool.endpoints:
        kept = state.models.get(endpoint.model)
        if kept is None or endpoint.model in learner.models:
            continue
        model = learner.model_of(endpoint)
        line = Line(*kept.line, kept.prefill_growth)
        model.restore(
            _samples(kept, endpoint.model, later_s, learner, pool), line, kept.knows_prefill, kept.knows_decode
        )
        _refill(model.answer_tokens, kept.answer_tokens)
        _refill(model.adapter_load_ms, kept.adapter_load_ms)
    for each in state.engines:
        endpoint_there = pool.by_address.get(each.address)
        if endpoint_there is None or endpoint_there.model != each.model or each.model not in learner.models:
            continue
        engine = learner.engines.setdefault((each.address, each.model), EngineTimes())
        model = learner.models[each.model]
        configured = ratios_of(endpoint_there.spec)
        engine.restore(_moved(each.prefill, later_s), _moved(each.decode, later_s), model, configured)
        _refill(engine.adapter_load_ms, each.adapter_load_ms)
    for name in pool.models:
        for sample in state.tokens.get(name, ()) if name not in learner.tokens else ():
            learner.tokens_of(name).add(tuple(sample.features), sample.tokens)
    learner.settle_all(pool)


def _samples(kept: ModelState, name: str, later_s: float, learner: Learner, pool: Pool) -> Iterator[Sample]:
    """Those of engines that are there still are such again, as slow as they were seen to be."""
    for work, address in zip_longest(_moved(kept.works, later_s), kept.addresses[: len(kept.works)]):
        endpoint = pool.by_address.get(address or "")
        slower = Ratios(*kept.slower.get(address or "", EQUAL))
        if endpoint is None or endpoint.model != name:
            yield Sample(work)
        else:
            configured = ratios_of(endpoint.spec)
            engine = learner.engines.setdefault((endpoint.address, name), EngineTimes())
            engine.prefill.seen_value, engine.decode.seen_value = map(truediv, slower, configured)
            yield Sample(slower.inverse().work(work), engine, configured)


def _moved(works: list[Work], by_s: float) -> list[Work]:
    return [msgspec.structs.replace(work, ended_s=work.ended_s + by_s) for work in works]


def _refill(running: Running, samples: list[float]) -> None:
    for sample in samples:
        running.add(sample)
