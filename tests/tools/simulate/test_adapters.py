"""Adapters of a simulated engine: slots, loads, and what its metrics page says of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fairlead.engines.metrics_text import read_metrics
from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_request import EngineRequest, EventKind
from fairlead.tools.simulate.server import EngineOptions, running_engine
from tests.tools.simulate.conftest import client_of
from tests.tools.simulate.test_engine import FAST, event_times, run_until_idle
from tests.waiting import until

SLOTS = replace(FAST, adapter_slots=2, adapter_load_ms=50.0)


def first_token_ms(engine: Engine, adapter: str, at_ms: float) -> float:
    """After which a lone request has its first token."""
    engine.submit(EngineRequest(f"{adapter} {at_ms}", 40, 3, adapter=adapter), at_ms)
    return event_times(run_until_idle(engine), EventKind.FIRST_TOKEN)[f"{adapter} {at_ms}"] - at_ms


def test_the_first_request_for_an_adapter_waits_for_its_load_and_the_next_does_not() -> None:
    engine = Engine(SLOTS)
    taken = [first_token_ms(engine, adapter, 1000.0 * number) for number, adapter in enumerate(["a", "a", "", "b"])]
    prefill_ms = 2.0 + 40 * 0.5
    assert taken == pytest.approx([prefill_ms + 50.0, prefill_ms, prefill_ms, prefill_ms + 50.0])
    assert engine.adapters.loads == 2


def test_the_adapter_used_least_recently_makes_room() -> None:
    engine = Engine(SLOTS)
    for number, adapter in enumerate(["a", "b", "a", "c", "a", "b"]):
        first_token_ms(engine, adapter, 1000.0 * number)
    assert engine.adapters.loads == 4  # a, b, c, and b again


def test_a_request_without_a_slot_waits_until_one_is_free_and_others_pass_it() -> None:
    engine = Engine(SLOTS)
    for name, adapter, tokens in (
        ("a", "a", 30),
        ("b", "b", 10),
        ("c", "c", 3),
        ("more of a", "a", 3),
        ("plain", "", 3),
    ):
        engine.submit(EngineRequest(name, 8, tokens, adapter=adapter), 0.0)
    assert (engine.adapters.running, engine.adapters_in_use) == (("a",), ("a", "b", "c"))
    events = run_until_idle(engine)
    first, finished = event_times(events, EventKind.FIRST_TOKEN), event_times(events, EventKind.FINISHED)
    assert max(first["more of a"], first["plain"]) < finished["b"] < first["c"] < finished["a"]
    assert engine.adapters.running == ()


def test_an_aborted_request_gives_its_slot_back() -> None:
    engine = Engine(SLOTS)
    for name in "abc":
        engine.submit(EngineRequest(name, 8, 50, adapter=name), 0.0)
    engine.step(engine.next_step_ms() or 0.0)
    engine.abort("a", 100.0)
    assert set(event_times(run_until_idle(engine), EventKind.FINISHED)) == {"b", "c"}


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_its_page_says_what_the_sidecar_reads_of_a_real_one(kind: str) -> None:
    parameters = replace(SLOTS, num_blocks=512, max_model_len=1000)
    options = EngineOptions(model="m", kind=kind, parameters=parameters, adapters=("sql", "legal"))
    name = "m:{}" if kind == "sglang" else "{}"
    async with running_engine(options) as engine, client_of(engine) as client:

        async def ask(adapter: str, tokens: int) -> None:
            body = {"model": name.format(adapter), "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
            assert (await client.post("/v1/completions", json=body)).status_code == 200

        async def page() -> tuple[int | None, tuple[str, ...]]:
            report = read_metrics((await client.get("/metrics")).content, 0.0)
            assert report is not None
            return report.adapter_slots, report.running_adapters

        assert await page() == (None, ())
        await ask("legal", 1)
        assert engine.engine.adapters.loads == 1
        asking = asyncio.create_task(ask("sql", 500))
        await until(lambda: engine.engine.running > 0)
        assert await page() == (2, ("sql",) if kind == "vllm" else ())
        asking.cancel()
        await until(lambda: not engine.engine.running)
        assert await page() == (2, ())


@pytest.mark.parametrize(("kind", "loads"), [("sglang", 1), ("vllm", 0)])
async def test_only_sglang_takes_an_adapter_that_is_named_beside_the_model(kind: str, loads: int) -> None:
    options = EngineOptions(model="m", kind=kind, parameters=replace(SLOTS, num_blocks=512), adapters=("sql",))
    async with running_engine(options) as engine, client_of(engine) as client:
        body = {"model": "m", "lora_path": "sql", "prompt": "hello", "max_tokens": 1}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert engine.engine.adapters.loads == loads
