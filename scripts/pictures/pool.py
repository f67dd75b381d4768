"""The pool whose pictures are taken: every feature on, simulated engines behind a real Envoy and a real sidecar."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from fairlead.core.capability import Capability, parse_capability_file
from fairlead.processes import free_ports
from fairlead.tools.demo import world
from fairlead.tools.simulate.kv_exchange import KvOptions
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions, RunningEngine, running_engine
from tests.redis.server import RedisServer
from tests.stack.conftest import Stack, stacks
from tests.stack.test_cascade import Judge, judging
from tests.tracing.test_tracer import collecting

FAST, ABLE, LARGE = (model.name for model in world.MODELS)
ADAPTER: Final = "sql-lora"
GREEDY: Final = "initech"  # the tenant that asks for more than its rate limit
LARGE_POOL: Final = 200
_DECODE_MS: Final = {FAST: 8.0, ABLE: 14.0, LARGE: 20.0}
_REGIONS: Final = ("eu", "us", "ap")


class AtWork(NamedTuple):
    stack: Stack
    judge: Judge
    discovered: RunningEngine
    listed: Path

    def lists(self, *, draining: bool) -> None:
        """The file says that its engine drains, or no more."""
        entry = {"address": self.discovered.address, "region": "us", "draining": draining}
        fresh = self.listed.with_suffix(".new")
        fresh.write_text(yaml.safe_dump([entry]), encoding="utf-8")
        fresh.replace(self.listed)


def _options(model: str, number: int, port: int, capability: Capability, **more: Any) -> EngineOptions:
    of_model = next(each for each in world.MODELS if each.name == model)
    speed = EngineParameters(
        prefill_ms_per_token=of_model.prefill_ms_per_token, decode_ms_per_step=_DECODE_MS[model], max_num_seqs=16
    )
    return EngineOptions(
        model, host=f"127.0.1.{number}", port=port, parameters=speed, capability=capability, seed=number, **more
    )


def _sections(judge: Judge, redis: RedisServer, traces: str, accuracy: Path, engines: Path) -> Mapping[str, Any]:
    cascade = {"cascade": [FAST, ABLE], "thresholds": [50], "judge": {"url": judge.url, "model": "grader"}}
    capable: dict[str, Any] = {model.name: {"capability": str(accuracy)} for model in world.MODELS}
    return {
        "routes": {"auto": [FAST, ABLE, LARGE], "checked": cascade},
        "models": {**capable, FAST: capable[FAST] | {"kv_bytes_per_token": 131_072}},
        "discovery": {"file": str(engines)},
        "sessions": {"store": redis.url},
        "tenants": {"header": "x-tenant", "vouched_by": "this script"},
        "rate_limits": {"tenants": {"*": {"tokens": 4_000_000}, GREEDY: {"tokens": 40_000}}},
        "admission": {
            "header": "x-priority",
            "vouched_by": "this script",
            "priorities": {"chat": {"level": 10}, "batch": {"level": -10, "max_wait_s": 60}},
            "default": "chat",
            "begin_within_ms": 400,
        },
        "migration": {
            "hot_tokens": 12_000,
            "hot_ratio": 1.5,
            "least_tokens": 500,
            "cool_down_s": 15,
            "most_copies_per_endpoint": 4,
        },
        "reuse": {FAST: {"always": ["order", "dedup"]}},
        "tuner": {"mode": "shadow", "window": 100, "wash_out": 0, "warm_up": 0},
        "tracing": {"endpoint": traces, "sample": 0.2},
        "decisions": {"path": "log"},
        "observe": {"interval_ms": 250, "timeout_ms": 5000, "failures_to_eject": 3, "answers_per_second": 50},
    }


@asynccontextmanager
async def at_work(folder: Path) -> AsyncIterator[AtWork]:
    """Three models: three engines that copy KV, two with an adapter, and one that a file lists."""
    async with AsyncExitStack() as cleanup:
        accuracy, listed = folder / "accuracy.json", folder / "engines.yaml"
        world.write_accuracy(accuracy)
        how_good = parse_capability_file(accuracy.read_bytes())
        (port,) = free_ports(1)
        models = [FAST, FAST, FAST, ABLE, ABLE]
        own: dict[str, Mapping[str, Any]] = {FAST: {"kv": KvOptions("mooncake")}, ABLE: {"adapters": (ADAPTER,)}}
        options = [_options(m, n, port, how_good.of_model(m), **own[m]) for n, m in enumerate(models, 1)]
        large = _options(LARGE, len(models) + 1, port, how_good.of_model(LARGE), kind="sglang")
        discovered = await cleanup.enter_async_context(running_engine(large))
        listed.write_text(yaml.safe_dump([{"address": discovered.address, "region": "us"}]), encoding="utf-8")
        redis = RedisServer(folder)
        cleanup.callback(redis.kill)
        redis.start()
        judge = await cleanup.enter_async_context(judging())
        collector = await cleanup.enter_async_context(collecting())
        start = await cleanup.enter_async_context(stacks(folder))
        traces = collector.url.removesuffix("/v1/traces")
        regions = [{"region": "eu"}] * 2 + [{"region": "us"}] * 3
        stack = await start(*options, endpoints=regions, **_sections(judge, redis, traces, accuracy, listed))
        yield AtWork(stack, judge, discovered, listed)


@asynccontextmanager
async def large(folder: Path) -> AsyncIterator[Stack]:
    """Two hundred engines of three models in three regions, read rarely, as they all share one event loop."""
    (port,) = free_ports(1)
    models = [world.MODELS[number % len(world.MODELS)] for number in range(LARGE_POOL)]
    options = [EngineOptions(each.name, host=f"127.0.2.{n}", port=port) for n, each in enumerate(models, 1)]
    rarely = dict.fromkeys(("interval_ms", "health_interval_ms", "rtt_interval_ms"), 20_000)
    observe = rarely | {"stale_ms": 120_000, "timeout_ms": 20_000, "failures_to_eject": 1, "answers_per_second": 0}
    regions = [{"region": _REGIONS[number // len(world.MODELS) % len(_REGIONS)]} for number in range(LARGE_POOL)]
    speeds = {
        name: {"prefill_ms_per_token": EngineParameters().prefill_ms_per_token, "decode_ms_per_token": ms}
        for name, ms in _DECODE_MS.items()
    }
    async with stacks(folder) as start:
        yield await start(*options, endpoints=regions, models=speeds, observe=observe)
