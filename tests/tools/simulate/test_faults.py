"""Faults on request: each one as a client meets it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from fairlead.tools.simulate.server import RunningEngine
from tests.tools.simulate.conftest import WITHIN_S
from tests.waiting import until

BODY: dict[str, Any] = {"prompt": "go on", "max_tokens": 20}


async def ask(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={**BODY, **more})


async def _read_into(received: bytearray, response: httpx.Response) -> None:
    async for chunk in response.aiter_raw():
        received += chunk


async def set_fault(client: httpx.AsyncClient, **fault: Any) -> None:
    (await client.post("/fault", json=fault)).raise_for_status()


async def test_down_fails_health_and_requests_until_it_is_cleared(client: httpx.AsyncClient) -> None:
    await set_fault(client, kind="down")
    for _ in range(2):
        assert (await client.get("/health")).status_code == 503
        assert (await ask(client)).status_code == 503
    assert (await client.delete("/fault")).status_code == 204
    assert (await client.get("/health")).status_code == 200
    assert (await ask(client)).status_code == 200


async def test_a_count_strikes_that_many_requests_and_no_health_check(client: httpx.AsyncClient) -> None:
    await set_fault(client, kind="error", count=2, status=502)
    statuses = []
    for _ in range(3):
        assert (await client.get("/health")).status_code == 200
        statuses.append((await ask(client)).status_code)
    assert statuses == [502, 502, 200]


async def test_error_has_openais_envelope(client: httpx.AsyncClient) -> None:
    await set_fault(client, kind="error", status=500)
    assert (await ask(client)).json()["error"]["code"] == 500


async def test_slow_delays_the_answer(client: httpx.AsyncClient) -> None:
    await set_fault(client, kind="slow", delay_ms=150, count=1)
    started_s = time.monotonic()
    assert (await ask(client)).status_code == 200
    assert time.monotonic() - started_s >= 0.15


async def test_slow_ends_when_it_is_cleared(client: httpx.AsyncClient, engine: RunningEngine) -> None:
    await set_fault(client, kind="slow", delay_ms=1e9, count=1)
    asking = asyncio.create_task(ask(client))
    await until(lambda: engine.faults.current is None)  # it has struck
    assert (await client.delete("/fault")).status_code == 204
    assert (await asking).status_code == 200


async def test_reset_ends_the_connection_without_a_byte(client: httpx.AsyncClient, engine: RunningEngine) -> None:
    await set_fault(client, kind="reset", count=1)
    host, port = engine.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: 14\r\n\r\n{"text": "hi"}')
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    assert (await ask(client)).status_code == 200


async def test_an_engine_dies_of_a_text_and_stays_dead(client: httpx.AsyncClient) -> None:
    await set_fault(client, kind="dies", text="deadly")
    assert (await ask(client)).status_code == 200
    for content in ("a deadly prompt", "hello"):
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await client.post("/v1/chat/completions", json=body)
    assert (await client.get("/health")).status_code == 503


async def test_an_engine_dies_over_a_stream_that_has_begun(client: httpx.AsyncClient) -> None:
    await set_fault(client, kind="dies_answering", text="deadly")
    assert (await ask(client)).status_code == 200
    received = bytearray()
    body = {"model": "m", "messages": [{"role": "user", "content": "a deadly prompt"}], "stream": True}
    response = await client.send(client.build_request("POST", "/v1/chat/completions", json=body), stream=True)
    with pytest.raises(httpx.RemoteProtocolError):
        await _read_into(received, response)
    assert response.status_code == 200
    assert received
    assert (await client.get("/health")).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_cut_ends_the_connection_in_the_middle(
    client: httpx.AsyncClient, engine: RunningEngine, stream: bool
) -> None:
    await set_fault(client, kind="cut", count=1)
    received = bytearray()
    request = client.build_request("POST", "/v1/completions", json={**BODY, "stream": stream})
    response = await client.send(request, stream=True)
    with pytest.raises(httpx.RemoteProtocolError):
        await _read_into(received, response)
    assert response.status_code == 200
    assert received
    assert b"[DONE]" not in received
    assert engine.engine.running == 0


async def test_hang_never_answers_while_health_is_fine(client: httpx.AsyncClient) -> None:
    await set_fault(client, kind="hang")
    with pytest.raises(httpx.ReadTimeout):
        await client.post("/v1/completions", json=BODY, timeout=httpx.Timeout(WITHIN_S, read=0.2))
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "fault", [{"kind": "tired"}, {}, {"kind": "error", "status": 200}, {"kind": "slow", "delay": 1}]
)
async def test_a_fault_that_does_not_exist_is_refused(client: httpx.AsyncClient, fault: dict[str, Any]) -> None:
    assert (await client.post("/fault", json=fault)).status_code == 400
    assert (await ask(client)).status_code == 200
