"""Faults of engines, of the sidecar and of the link between: a clear error or a correct pass, and nothing lost."""

from __future__ import annotations

import asyncio
import signal

import aiohttp
import pytest

from fairlead.core.health import SILENCE_S
from fairlead.core.streak import REQUEST_FAILURES_TO_EJECT
from fairlead.gateway import Mode
from fairlead.tools.simulate.server import EngineOptions, running_engine
from tests.stack.conftest import Start, engine


async def test_a_dead_engine_costs_no_request(stack: Start) -> None:
    pool = await stack(engine("small"), engine("small"))
    await pool.engines[0].stop()
    answers = await asyncio.gather(*(pool.chat() for _ in range(20)))
    assert [answer.status for answer in answers] == [200] * 20
    await pool.until(pool.has_ejected_the_first, "the dead engine is ejected")
    answers = await asyncio.gather(*(pool.chat() for _ in range(20)))
    assert {answer.headers["x-fairlead-endpoint"] for answer in answers} == {pool.engines[1].address}


@pytest.mark.parametrize(
    "fault", [{"kind": "error", "status": status} for status in (500, 503, 429)] + [{"kind": "reset"}]
)
async def test_a_failing_engine_hands_over_to_the_next_of_its_model(stack: Start, fault: dict[str, object]) -> None:
    pool = await stack(engine("small"), engine("small"), engine("large"), policy={"name": "ear"})  # a session stays
    session = {"x-session-id": "s"}
    home = (await pool.chat(model="small", headers=session)).headers["x-fairlead-endpoint"]
    failing = [running.address for running in pool.engines].index(home)
    await pool.fault(failing, **fault)
    answers = [await pool.chat(model="small", headers=session) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert {answer.headers["x-fairlead-endpoint"] for answer in answers} == {pool.engines[1 - failing].address}
    assert answers[0].headers["x-fairlead-decision"] == "fallback"
    await pool.at_rest()


async def test_an_engine_whose_model_has_no_other_endpoint_passes_its_own_error(stack: Start) -> None:
    pool = await stack(engine("small"), engine("large"))
    await pool.fault(0, kind="error", status=500)
    answer = await pool.chat(model="small")
    assert answer.status == 500
    assert set(answer.json()["error"]) >= {"message", "type", "code"}


async def test_an_engine_that_comes_back_is_chosen_again(stack: Start) -> None:
    pool = await stack(engine("small"))
    await pool.fault(0, kind="down")

    async def refused() -> bool:
        answer = await pool.chat(model="small")  # until the probes see it, the engine's own 503 passes
        return answer.status == 503 and answer.json()["error"]["code"] == "no_endpoint"

    await pool.until(refused, "the only engine is ejected")
    assert (await pool.chat(model="small")).headers["retry-after"] == "1"
    async with pool.client.delete(f"http://{pool.engines[0].address}/fault"):
        pass

    async def served() -> bool:
        return (await pool.chat(model="small")).status == 200

    await pool.until(served, "the engine is back")


@pytest.mark.slow
async def test_an_engine_that_answers_probes_and_hangs_on_requests_is_ejected(stack: Start) -> None:
    pool = await stack(engine("small"), engine("small"))
    hanging, well = (running.address for running in pool.engines)
    await pool.fault(0, kind="hang")

    async def ask() -> str:
        try:
            async with asyncio.timeout(SILENCE_S + 3):
                return (await pool.chat(model="small")).headers["x-fairlead-endpoint"]
        except TimeoutError:
            return "left"

    async def ejections() -> float:
        return await pool.metric("fairlead_endpoint_ejections_total", endpoint=hanging)

    asked: list[str] = []
    while not await ejections():  # how many of them go to which engine is the policy's matter
        asked += await asyncio.gather(*(ask() for _ in range(4 * REQUEST_FAILURES_TO_EJECT)))
    assert set(asked) == {"left", well}
    assert asked.count("left") >= REQUEST_FAILURES_TO_EJECT
    assert await asyncio.gather(*(ask() for _ in range(8))) == [well] * 8


async def test_thirty_bad_requests_of_a_client_eject_nobody(stack: Start) -> None:
    pool = await stack(engine("small"))
    for _ in range(30):
        assert (await pool.chat(model="small", max_tokens=-1)).status == 400
    assert (await pool.chat(model="small")).status == 200


async def test_a_prompt_that_fails_at_every_engine_however_often_takes_none_from_the_others(stack: Start) -> None:
    pool = await stack(engine("small"), engine("small"), engine("small"))
    for number in range(3):
        await pool.fault(number, kind="error", status=500)
    for _ in range(3 * REQUEST_FAILURES_TO_EJECT):
        assert (await pool.chat("a prompt that no engine can compute", model="small")).status == 500
    assert await pool.metric("fairlead_endpoint_ejections_total") == 0
    for number in range(3):
        async with pool.client.delete(f"http://{pool.engines[number].address}/fault"):
            pass
    answers = await asyncio.gather(*(pool.chat(f"{number} hello", model="small") for number in range(12)))
    assert {answer.headers["x-fairlead-endpoint"] for answer in answers} == {each.address for each in pool.engines}


@pytest.mark.parametrize("engines", [2, 3])
async def test_different_prompts_that_fail_everywhere_take_no_engine_from_others(stack: Start, engines: int) -> None:
    """Of two engines Envoy asks one twice: its three attempts are more than there are to try."""
    pool = await stack(*(engine("small") for _ in range(engines)))
    for number in range(engines):
        await pool.fault(number, kind="error", status=500, text="a parameter that fails")
    for number in range(8):
        assert (await pool.chat(f"{number} hello", model="small")).status == 200
    for number in range(12):
        assert (await pool.chat(f"{number} again", model="small", user="a parameter that fails")).status == 500
    assert await pool.metric("fairlead_endpoint_ejections_total") == 0


async def test_a_prompt_that_kills_each_engine_leaves_the_pool_to_other_clients_however_often_it_is_sent(
    stack: Start,
) -> None:
    pool = await stack(*(engine("small") for _ in range(6)))
    for number in range(6):
        await pool.fault(number, kind="dies", text="a prompt that kills")
    before = await asyncio.gather(*(pool.chat(f"{number} hello", model="small") for number in range(24)))
    assert {answer.headers["x-fairlead-endpoint"] for answer in before} == {each.address for each in pool.engines}

    async def alive() -> int:
        pages = [pool.client.get(f"http://{each.address}/health") for each in pool.engines]
        return [page.status for page in await asyncio.gather(*pages)].count(200)

    async def the_dead_are_known() -> bool:
        return await pool.metric("fairlead_endpoint_up") == await alive()

    # With others there, a 503 of the engine's own would be a full queue.
    running = [
        asyncio.create_task(pool.chat(f"{number} long", model="small", max_tokens=100_000)) for number in range(12)
    ]

    async def all_are_busy() -> bool:
        loads = [await pool.metric("fairlead_inflight_requests", endpoint=each.address) for each in pool.engines]
        return min(loads) > 0

    await pool.until(all_are_busy, "each engine has a long request")
    deadly, others = [], []
    for number in range(20):
        deadly.append(await pool.chat("a prompt that kills", model="small"))
        await pool.until(the_dead_are_known, "the dead engines are out")
        others.append(await pool.chat(f"{number} how are you", model="small"))
    assert [answer.status for answer in deadly] == [503] * 2 + [422] * 18
    assert deadly[-1].json()["error"]["code"] == "prompt_fails_engines"
    assert [answer.status for answer in others] == [200] * 20
    assert await alive() == 2
    assert await pool.metric("fairlead_suspect_prompts_total", outcome="refused") == 18
    for task in running:
        task.cancel()
    await pool.at_rest()


async def test_a_prompt_over_whose_streams_engines_die_comes_to_three_of_them(stack: Start) -> None:
    """Engines open a stream before they compute the prompt: the client sees a 200 that breaks off."""
    pool = await stack(*(engine("small") for _ in range(6)))
    for number in range(6):
        await pool.fault(number, kind="dies_answering", text="a prompt that kills")
    await asyncio.gather(*(pool.chat(f"{number} hello", model="small") for number in range(24)))

    async def up() -> float:
        return await pool.metric("fairlead_endpoint_up")

    async def outcome_of_the_deadly() -> int:
        """0: the answer broke off. Envoy may have seen that before it passed anything on."""
        try:
            return (await pool.chat("a prompt that kills", model="small", stream=True)).status
        except aiohttp.ClientPayloadError:
            return 0

    found: list[int] = []
    for number in range(6):
        before = await up()
        found.append(await outcome_of_the_deadly())

        async def is_known(before: float = before) -> bool:
            return await up() < before

        if found[-1] != 422:
            await pool.until(is_known, "the dead engine is out")
        assert (await pool.chat(f"{number} how are you", model="small", stream=True)).status == 200
    assert {*found[:3]} <= {0, 502}
    assert found[3:] == [422] * 3
    assert await up() == 3
    await pool.at_rest()


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_when_the_sidecar_is_killed_requests_flow_and_its_return_is_noticed(stack: Start, mode: Mode) -> None:
    pool = await stack(engine("small"), engine("large"), mode=mode)
    pool.stop_sidecar(signal.SIGKILL)

    async def open_again() -> bool:
        return (await pool.chat(model="small")).status == 200

    if mode == "full_duplex":  # Envoy fails open in this mode only once its health check has failed
        await pool.until(open_again, "Envoy goes on without the sidecar")
    for model in ("small", "large", "small", "large"):
        answer = await pool.chat(model=model)
        assert answer.status == 200, answer.body
        assert answer.json()["model"] == model
    await pool.start_sidecar()
    await pool.until(pool.advises, "Envoy asks the sidecar again")


async def test_when_the_sidecar_hangs_requests_flow(stack: Start) -> None:
    pool = await stack(engine("small"), gateway={"processor_timeout_ms": 1000})
    assert pool.sidecar is not None
    pool.sidecar.send_signal(signal.SIGSTOP)
    try:
        answers = await asyncio.gather(*(pool.chat(model="small") for _ in range(5)))
    finally:
        pool.sidecar.send_signal(signal.SIGCONT)
    assert [answer.status for answer in answers] == [200] * 5


async def test_while_the_sidecar_is_away_a_client_still_cannot_choose_an_endpoint(stack: Start) -> None:
    pool = await stack(engine("small"), engine("large"))
    pool.stop_sidecar(signal.SIGKILL)
    await pool.chat(model="small", headers={"x-gateway-destination-endpoint": pool.engines[1].address})
    received = await pool.last_request(0)
    assert "x-gateway-destination-endpoint" not in {name.lower() for name, _ in received["headers"]}


async def test_more_requests_at_once_than_envoys_default_limit_all_pass(stack: Start) -> None:
    # 1,200 at the same moment are 2,400 messages: on a busy machine the last wait longer than the second by default.
    pool = await stack(engine("small"), engine("small"), gateway={"processor_timeout_ms": 60_000})
    for each in (0, 1):
        await pool.fault(each, kind="slow", delay_ms=1e9)
    pool.client.connector._limit = 0  # type: ignore[union-attr]
    asking = [asyncio.create_task(pool.chat()) for _ in range(1200)]

    async def all_in_flight() -> bool:
        return await pool.metric("fairlead_inflight_requests") == len(asking)

    await pool.until(all_in_flight, "more are in flight than the 1,024 that Envoy lets pass by default")
    for running in pool.engines:
        running.faults.set(None)
    answers = await asyncio.gather(*asking)
    assert {(answer.status, answer.body if answer.status != 200 else b"") for answer in answers} == {(200, b"")}


async def test_an_engine_that_is_back_with_another_model_gets_no_more_requests_for_its_own(stack: Start) -> None:
    pool = await stack(engine("small"), engine("small"))
    address = pool.engines[1].address
    await pool.engines[1].stop()
    async with running_engine(EngineOptions(model="other", port=int(address.rpartition(":")[2]))):

        async def is_left_out() -> bool:
            await asyncio.gather(*(pool.chat(f"{number} hello", model="small") for number in range(8)))
            return await pool.metric("fairlead_endpoints_withheld", reason="other_model") == 1

        await pool.until(is_left_out, "it answered 404")
        answers = await asyncio.gather(*(pool.chat(f"{number} hello", model="small") for number in range(16)))
        assert {answer.status for answer in answers} == {200}
