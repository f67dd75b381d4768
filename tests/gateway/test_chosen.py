"""A real Envoy with a processor that answers: requests go down the list that the processor names."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.gateway import Mode
from tests.gateway.conftest import Gateway, StartEngine, StartEnvoy, StartProcessor
from tests.gateway.world import WITHIN_S
from tests.waiting import until

MODES: list[Mode] = ["buffered", "full_duplex"]


@pytest.mark.parametrize("mode", MODES)
async def test_every_request_goes_to_the_chosen_engine(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy, mode: Mode
) -> None:
    first, second = await engine("first"), await engine("second")
    sidecar, address = await processor(second.address)
    gateway = await envoy(first.address, second.address, sidecar=address, mode=mode)

    answers = [await gateway.post() for _ in range(10)]

    assert [answer.body for answer in answers] == [b"second"] * 10
    assert sidecar.served == [second.address] * 10


async def test_the_requests_of_two_workers_of_envoys_go_to_the_chosen_engine(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    """Each worker has a connection of its own to the sidecar, and the kernel deals clients out to them."""
    first, second = await engine("first"), await engine("second")
    sidecar, address = await processor(second.address)
    gateway = await envoy(first.address, second.address, sidecar=address, workers=2)
    asked, port = 0, gateway.url.rpartition(":")[2]

    async def both_have_served() -> bool:
        nonlocal asked
        answers = await asyncio.gather(*(gateway.post(b"x" * 50_000) for _ in range(32)))
        asked += len(answers)
        assert [answer.body for answer in answers] == [b"second"] * 32
        async with gateway.client.get(
            f"{gateway.process.admin_url}/stats?filter=_{port}.worker_..downstream_cx_total"
        ) as stats:
            counts = [int(line.rpartition(": ")[2]) for line in (await stats.text()).splitlines()]
        assert len(counts) == 2
        return all(counts)

    await until(both_have_served, "both workers have had clients")
    assert sidecar.served == [second.address] * asked


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("failure", [{"status": 500}, {"status": 503}, {"status": 429}, {"resets": True}])
async def test_a_failing_first_choice_is_answered_by_the_second(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy, failure: dict[str, int], mode: Mode
) -> None:
    broken, other, spare = await engine("broken", **failure), await engine("other"), await engine("spare")
    sidecar, address = await processor(broken.address, spare.address)
    gateway = await envoy(broken.address, other.address, spare.address, sidecar=address, mode=mode)

    answer = await gateway.post(b"x" * 100_000)

    assert (answer.status, answer.body) == (200, b"spare")
    assert [request.body for request in broken.received + spare.received] == [b"x" * 100_000] * 2
    assert sidecar.served == [spare.address]


async def test_where_every_engine_is_full_the_client_gets_the_429(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    engines = [await engine(name, status=429) for name in ("a", "b", "c")]
    _, address = await processor(*(each.address for each in engines))
    gateway = await envoy(*(each.address for each in engines), sidecar=address)

    answer = await gateway.post()

    assert answer.status == 429
    assert [len(each.received) for each in engines] == [1, 1, 1]


@pytest.mark.parametrize("mode", MODES)
async def test_a_dead_first_choice_is_answered_by_the_second(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy, dead_engine: str, mode: Mode
) -> None:
    other, spare = await engine("other"), await engine("spare")
    sidecar, address = await processor(dead_engine, spare.address)
    gateway = await envoy(dead_engine, other.address, spare.address, sidecar=address, mode=mode)

    answers = [await gateway.post() for _ in range(10)]

    assert [answer.body for answer in answers] == [b"spare"] * 10
    assert sidecar.served == [spare.address] * 10


async def test_the_choice_counts_more_than_envoys_own_health_check(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    chosen, other = await engine("chosen", healthy=False), await engine("other")
    _, address = await processor(chosen.address, other.address)
    gateway = await envoy(chosen.address, other.address, sidecar=address)

    assert [(await gateway.post()).body for _ in range(10)] == [b"chosen"] * 10


async def test_an_engine_that_dies_between_two_health_checks_costs_the_client_nothing(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    dies, spare = await engine("dies"), await engine("spare")
    _, address = await processor(dies.address, spare.address)
    gateway = await envoy(dies.address, spare.address, sidecar=address)
    assert (await gateway.post()).body == b"dies"

    await dies.stop()

    assert (await gateway.post()).body == b"spare"


async def test_a_404_of_the_chosen_engine_is_its_answer(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    chosen, other = await engine("chosen", status=404), await engine("other")
    _, address = await processor(chosen.address, other.address)
    gateway = await envoy(chosen.address, other.address, sidecar=address)

    answer = await gateway.post()

    assert (answer.status, answer.body, other.received) == (404, b"chosen", [])


async def test_without_fallbacks_the_first_choice_is_tried_once(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    chosen, other = await engine("chosen", status=500), await engine("other")
    _, address = await processor(chosen.address, other.address)
    gateway = await envoy(chosen.address, other.address, sidecar=address, fallbacks=0)

    answer = await gateway.post()

    assert (answer.status, len(chosen.received), other.received) == (500, 1, [])


async def test_an_address_named_twice_is_tried_twice_before_the_list_ends(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    chosen, other = await engine("chosen", status=500), await engine("other")
    _, address = await processor(chosen.address, chosen.address, chosen.address)
    gateway = await envoy(chosen.address, other.address, sidecar=address, fallbacks=2)

    answer = await gateway.post()

    assert (answer.status, len(chosen.received), other.received) == (500, 3, [])


async def test_an_engine_that_is_configured_by_name_is_chosen_by_its_address_and_not_by_its_name(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    first, second = await engine("first"), await engine("second")
    by_name = [each.address.replace("127.0.0.1", "localhost") for each in (first, second)]
    _, by_address = await processor(second.address)
    sidecar, name_only = await processor(by_name[1])
    gateway = await envoy(*by_name, sidecar=by_address)
    other_gateway = await envoy(*by_name, sidecar=name_only)

    assert [(await gateway.post()).body for _ in range(10)] == [b"second"] * 10
    assert {(await other_gateway.post()).body for _ in range(40)} == {b"first", b"second"}
    assert sidecar.bodies == [b"{}"] * 40


async def test_a_client_cannot_choose_the_engine(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    wanted, chosen = await engine("wanted"), await engine("chosen")
    _, address = await processor(chosen.address)
    gateway = await envoy(wanted.address, chosen.address, sidecar=address)

    answers = [await gateway.post(headers={"x-gateway-destination-endpoint": wanted.address}) for _ in range(10)]

    assert [answer.body for answer in answers] == [b"chosen"] * 10


async def test_a_request_without_a_body_is_chosen_by_its_headers(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    first, second = await engine("first"), await engine("second")
    _, address = await processor(second.address)
    gateway = await envoy(first.address, second.address, sidecar=address)

    answers = [await gateway.ask("GET", "/v1/models") for _ in range(10)]

    assert [answer.body for answer in answers] == [b"second"] * 10


@pytest.mark.parametrize("mode", MODES)
async def test_a_20_mb_body_reaches_processor_and_engine_whole(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy, mode: Mode
) -> None:
    first = await engine("first")
    sidecar, address = await processor(first.address)
    gateway = await envoy(first.address, sidecar=address, mode=mode)
    body = b"0123456789" * 2_000_000

    answer = await gateway.post(body)

    assert answer.status == 200
    assert sidecar.bodies == [body]
    assert first.received[0].body == body


async def message_timeouts(gateway: Gateway) -> int:
    """How often Envoy gave up waiting for the processor."""
    url = f"{gateway.process.admin_url}/stats?filter=ext_proc.*message_timeouts"
    async with gateway.client.get(url) as response:
        lines = (await response.text()).splitlines()
    return sum(int(line.rpartition(": ")[2]) for line in lines)


async def test_a_hung_processor_costs_its_timeout_once_and_the_request_passes(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    first = await engine("first")
    _, address = await processor(first.address, hangs=True)
    gateway = await envoy(first.address, sidecar=address, processor_timeout_ms=1010)  # its timers are some ms coarse

    started = time.perf_counter()
    answer = await gateway.post()
    took_s = time.perf_counter() - started

    assert answer.status == 200
    assert took_s >= 1.0
    assert await message_timeouts(gateway) == 1


@pytest.mark.parametrize("status", [400, 413, 429, 503, 504])
async def test_a_refusal_of_the_processor_reaches_the_client_unchanged(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy, status: int
) -> None:
    first = await engine("first")
    sidecar, address = await processor(first.address)
    body = json.dumps({"error": {"message": "too much", "type": "t", "param": None, "code": "c"}}).encode()
    refused = pb.HttpStatus(code=status)
    sidecar.refusal = pb.ImmediateResponse(status=refused, body=body, details="fairlead_test")
    gateway = await envoy(first.address, sidecar=address)

    answer = await gateway.post()

    assert (answer.status, answer.body, first.received) == (status, body, [])


async def test_in_full_duplex_a_body_that_went_down_with_the_sidecar_is_a_503_that_clients_retry(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    first = await engine("first")
    sidecar, address = await processor(first.address)
    sidecar.hangs = True
    gateway = await envoy(first.address, sidecar=address, mode="full_duplex")
    asking = asyncio.create_task(gateway.post())
    async with asyncio.timeout(WITHIN_S):
        await sidecar.asked.wait()

    await sidecar.stop()
    answer = await asking

    assert (answer.status, answer.headers["retry-after"], first.received) == (503, "1", [])
    assert json.loads(answer.body)["error"]["code"] == "no_advice"


@pytest.mark.parametrize("mode", MODES)
async def test_the_sidecar_is_used_again_soon_after_it_comes_up(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy, tmp_path: Path, mode: Mode
) -> None:
    first, second = await engine("first", status=404), await engine("second", status=404)
    address = f"unix:{tmp_path}/fairlead.sock"
    gateway = await envoy(first.address, second.address, sidecar=address, mode=mode)
    assert (await gateway.post()).status == 404

    sidecar, _ = await processor(second.address, address=address)

    async with asyncio.timeout(WITHIN_S):
        while not sidecar.served:
            await gateway.post()
    assert sidecar.served == [second.address]


async def test_a_client_that_leaves_ends_the_request_at_the_engine(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    first = await engine("first", stalls=True)
    _, address = await processor(first.address)
    gateway = await envoy(first.address, sidecar=address)

    client = asyncio.create_task(gateway.post())
    await first.reached.wait()
    client.cancel()

    async with asyncio.timeout(WITHIN_S):
        await first.left.wait()


LEVER = b'{"model": "m", "kv_transfer_params": {"do_remote_prefill": true}}'


@pytest.mark.parametrize(
    ("behaviour", "path"), [({"hangs": True}, "/v1/chat/completions"), ({"reads": False}, "/pooling")]
)
async def test_what_the_sidecar_does_not_read_in_time_or_at_all_reaches_the_engine_without_levers(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy, behaviour: dict[str, bool], path: str
) -> None:
    first = await engine("first")
    _, address = await processor(first.address, **behaviour)
    gateway = await envoy(first.address, sidecar=address, processor_timeout_ms=300)

    answers = [await gateway.ask("POST", path, LEVER) for _ in range(3)]

    assert [answer.status for answer in answers] == [200] * 3
    assert [json.loads(request.body)["kv_transfer_params"] for request in first.received] == [None] * 3
