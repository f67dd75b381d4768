"""A real Envoy whose sidecar is down: requests still reach an engine that can answer, and nothing of them changes."""

from __future__ import annotations

import json

import pytest

from tests.gateway.conftest import StartEngine, StartEnvoy
from tests.gateway.world import body_of

CLIENTS_OWN = {
    "x-session-id": "s",
    "x-fairlead-attempted-models": "a, b",
    "x-forwarded-for": "203.0.113.9",
    "authorization": "Bearer k",
    "host": "pool.example",
}
GATEWAYS_OWN = {
    "x-gateway-destination-endpoint": "192.0.2.1:9",
    "x-gateway-destination-endpoint-subset": "192.0.2.1:9",
    "x-fairlead-model": "m",
    "x-fairlead-endpoint": "192.0.2.1:9",
    "x-fairlead-decision": "cost",
    "x-envoy-retry-on": "5xx",
    "x-envoy-max-retries": "9",
    "x-envoy-original-dst-host": "192.0.2.1:9",
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-envoy-upstream-alt-stat-name": "x",
}


async def test_a_post_passes_when_the_sidecar_is_down(engine: StartEngine, envoy: StartEnvoy) -> None:
    first = await engine("first")
    gateway = await envoy(first.address)

    answer = await gateway.post(b'{"model": "m"}')

    assert (answer.status, answer.body) == (200, b"first")
    assert [request.body for request in first.received] == [b'{"model": "m"}']


async def test_headers_that_only_the_gateway_may_set_do_not_reach_the_engine(
    engine: StartEngine, envoy: StartEnvoy
) -> None:
    first = await engine("first")
    gateway = await envoy(first.address)

    answer = await gateway.post(headers=GATEWAYS_OWN)

    assert answer.status == 200
    headers = first.received[0].headers
    assert {name for name in headers if name.startswith(("x-envoy-", "x-gateway-", "x-fairlead-"))} == set()


async def test_headers_of_the_client_reach_the_engine_as_they_were_sent(engine: StartEngine, envoy: StartEnvoy) -> None:
    first = await engine("first")
    gateway = await envoy(first.address)

    await gateway.post(headers=CLIENTS_OWN)

    assert first.received[0].headers.items() >= CLIENTS_OWN.items()


async def test_a_404_of_one_engine_moves_on_to_the_engine_that_serves_the_model(
    engine: StartEngine, envoy: StartEnvoy
) -> None:
    strangers = [await engine("stranger", status=404) for _ in range(7)]
    serves = await engine("serves")
    gateway = await envoy(*(stranger.address for stranger in strangers), serves.address)

    answers = [await gateway.post() for _ in range(20)]

    assert [answer.body for answer in answers] == [b"serves"] * 20
    assert sum(len(stranger.received) for stranger in strangers) > 0


async def test_a_404_of_every_engine_is_the_answer(engine: StartEngine, envoy: StartEnvoy) -> None:
    strangers = [await engine(name, status=404) for name in ("one", "two")]
    gateway = await envoy(*(stranger.address for stranger in strangers))

    answer = await gateway.post()

    assert answer.status == 404
    assert [len(stranger.received) for stranger in strangers] == [1, 1]


@pytest.mark.parametrize("sent", ["2f6b0c1e-7a55-4c1d-9a2f-0d8f4a9c1f00", "my id: 7/ä", "x" * 4000])
async def test_a_request_id_of_the_client_is_kept_and_returned(
    engine: StartEngine, envoy: StartEnvoy, sent: str
) -> None:
    first = await engine("first")
    gateway = await envoy(first.address)

    answer = await gateway.post(headers={"x-request-id": sent})

    assert first.received[0].headers["x-request-id"] == sent
    assert answer.headers["x-request-id"] == sent


async def test_a_request_id_is_made_when_the_client_sent_none(engine: StartEngine, envoy: StartEnvoy) -> None:
    first = await engine("first")
    gateway = await envoy(first.address)

    answers = [await gateway.post(), await gateway.post()]

    made = [request.headers["x-request-id"] for request in first.received]
    assert made == [answer.headers["x-request-id"] for answer in answers]
    assert len(set(made)) == 2


async def test_the_headers_and_bytes_of_an_answer_pass_unchanged(engine: StartEngine, envoy: StartEnvoy) -> None:
    headers = {"server": "uvicorn", "x-odd": "1 ; 2", "date": "Thu, 01 Jan 1970 00:00:00 GMT"}
    first = await engine("f\x00\xff", headers=headers)
    gateway = await envoy(first.address)

    answer = await gateway.post()

    assert answer.body == "f\x00\xff".encode()
    assert answer.headers.items() >= headers.items()
    assert set(answer.headers) - set(headers) == {"content-length", "content-type", "x-request-id"}


async def test_the_path_and_query_pass_with_escapes_and_only_a_doubled_slash_is_mended(
    engine: StartEngine, envoy: StartEnvoy
) -> None:
    first = await engine("first")
    gateway = await envoy(first.address)

    await gateway.ask("GET", "//v1/models/org%2Fname?q=a//b")

    assert first.received[0].path == "/v1/models/org%2Fname?q=a//b"


async def test_a_dead_engine_costs_the_client_nothing(engine: StartEngine, envoy: StartEnvoy, dead_engine: str) -> None:
    alive = await engine("alive")
    gateway = await envoy(dead_engine, alive.address)

    assert [(await gateway.post()).status for _ in range(20)] == [200] * 20


async def test_an_engine_whose_health_check_fails_gets_no_request(engine: StartEngine, envoy: StartEnvoy) -> None:
    sick, well = await engine("sick", healthy=False), await engine("well")
    gateway = await envoy(sick.address, well.address)

    assert [(await gateway.post()).body for _ in range(20)] == [b"well"] * 20


async def test_when_no_engine_is_healthy_they_are_tried_all_the_same(engine: StartEngine, envoy: StartEnvoy) -> None:
    sick = await engine("sick", healthy=False)
    gateway = await envoy(sick.address)

    assert (await gateway.post()).body == b"sick"


async def test_an_engine_that_resets_every_request_costs_the_client_nothing(
    engine: StartEngine, envoy: StartEnvoy
) -> None:
    broken, alive = await engine("broken", resets=True), await engine("alive")
    gateway = await envoy(broken.address, alive.address)

    assert [(await gateway.post()).status for _ in range(20)] == [200] * 20
    assert broken.received


async def test_an_engines_own_error_passes_unchanged(engine: StartEngine, envoy: StartEnvoy) -> None:
    first = await engine("a message of the engine", status=503)
    gateway = await envoy(first.address)

    answer = await gateway.post()

    assert (answer.status, answer.body) == (503, b"a message of the engine")


async def test_when_no_engine_is_reachable_the_error_has_openais_shape(envoy: StartEnvoy, dead_engine: str) -> None:
    gateway = await envoy(dead_engine)

    answer = await gateway.post()

    assert answer.status == 503
    assert json.loads(answer.body)["error"]["code"] == "no_engine"
    assert answer.headers["retry-after"] == "1"


async def test_an_only_engine_that_resets_gives_an_error_in_openais_shape(
    engine: StartEngine, envoy: StartEnvoy
) -> None:
    broken = await engine("broken", resets=True)
    gateway = await envoy(broken.address)

    answer = await gateway.post()

    assert (answer.status, json.loads(answer.body)["error"]["type"]) == (503, "server_error")


@pytest.mark.parametrize("size", [2_000_000, 20_000_000])
async def test_a_large_body_passes_and_survives_every_retry(engine: StartEngine, envoy: StartEnvoy, size: int) -> None:
    strangers = [await engine(name, status=404) for name in ("one", "two", "three")]
    gateway = await envoy(*(stranger.address for stranger in strangers))
    body = body_of(size)

    answer = await gateway.post(body)

    assert answer.status == 404
    assert [[request.body == body for request in stranger.received] for stranger in strangers] == [[True]] * 3


@pytest.mark.parametrize(("size", "status"), [(100_000, 200), (100_001, 413)])
async def test_the_limit_of_a_body_is_exact(engine: StartEngine, envoy: StartEnvoy, size: int, status: int) -> None:
    first = await engine("first")
    gateway = await envoy(first.address, max_body_bytes=100_000)

    answer = await gateway.post(body_of(size))

    assert answer.status == status
    assert len(first.received) == (1 if status == 200 else 0)


async def test_a_body_over_the_limit_is_refused_in_openais_shape(engine: StartEngine, envoy: StartEnvoy) -> None:
    first = await engine("first")
    gateway = await envoy(first.address, max_body_bytes=1000)

    answer = await gateway.post(b"x" * 5000)

    error = json.loads(answer.body)["error"]
    assert (answer.status, error["type"], error["code"]) == (413, "invalid_request_error", "request_too_large")
    assert "1000 bytes" in error["message"]


async def test_in_full_duplex_a_post_passes_when_the_sidecar_is_down(engine: StartEngine, envoy: StartEnvoy) -> None:
    first = await engine("first")
    gateway = await envoy(first.address, mode="full_duplex")

    answer = await gateway.post(b'{"model": "m"}')

    assert (answer.status, first.received[0].body) == (200, b'{"model": "m"}')
