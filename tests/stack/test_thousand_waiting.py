"""A thousand requests wait for one engine: their clients leave, or the sidecar is killed, in each mode of Envoy."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from fairlead.gateway import Mode
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions
from tests.stack.conftest import Stack, Start

THOUSAND = 1000
AT_ONCE = 100
ADMISSION = {"begin_within_ms": 50, "max_wait_s": 240, "max_requests_of_tenant": 2 * THOUSAND}
AS_SLOW_AS_IT_IS = {"small": {"prefill_ms_per_token": 1.0}}  # else the plug would be taken for done long before it is
PLUG = "word " * 120_000  # two minutes of prefill, until its client leaves

pytestmark = pytest.mark.timeout(300)


@asynccontextmanager
async def thousand_waiting(pool: Stack) -> AsyncIterator[list[asyncio.Task[int]]]:
    """The answers' status, of requests that wait behind one that takes long; it has left at the end."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def ask(content: str) -> int:
            message = {"role": "user", "content": content}
            body = {"model": "small", "messages": [message], "max_tokens": 1}
            async with client.post(f"{pool.url}/v1/chat/completions", json=body) as response:
                await response.read()
                return response.status

        plugs = [asyncio.create_task(ask(f"{number} {PLUG}")) for number in range(2)]

        async def is_plugged() -> bool:
            return await pool.metric("fairlead_inflight_requests") >= 1

        await pool.until(is_plugged, "the engine is busy")
        tasks: list[asyncio.Task[int]] = []

        async def all_wait() -> bool:
            ended = [task for task in (*plugs, *tasks) if task.done()]
            assert not ended, f"{len(ended)} did not wait: {Counter(task.result() for task in ended)}\n{pool.log()}"
            return await pool.metric("fairlead_waiting_requests") >= len(tasks)

        while len(tasks) < THOUSAND:  # not all at once: on a busy machine Envoy would pass some by before they are read
            tasks += [asyncio.create_task(ask(str(number))) for number in range(len(tasks), len(tasks) + AT_ONCE)]
            await pool.until(all_wait, f"{len(tasks)} wait")
        yield tasks
        for plug in plugs:
            plug.cancel()
        await asyncio.gather(*plugs, *tasks, return_exceptions=True)


def engine() -> EngineOptions:
    return EngineOptions(model="small", parameters=EngineParameters(prefill_ms_per_token=1.0, max_num_seqs=256))


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_when_their_clients_leave_nothing_of_them_is_left(stack: Start, mode: Mode) -> None:
    pool = await stack(engine(), mode=mode, admission=ADMISSION, models=AS_SLOW_AS_IT_IS)
    async with thousand_waiting(pool) as tasks:
        for task in tasks:
            task.cancel()

        async def nothing_is_left() -> bool:
            held = await pool.metric("fairlead_waiting_requests")
            return held <= 1 and await pool.metric("fairlead_running_streams") <= 2  # the plugs

        await pool.until(nothing_is_left, "the queue is empty and its streams have ended")
        assert await pool.metric("fairlead_inflight_requests") <= 2
    gone = await pool.metric("fairlead_waited_requests_total", outcome="client_gone")
    assert gone >= THOUSAND
    await pool.at_rest()
    assert await pool.metric("fairlead_failures_total") == 0


@pytest.mark.parametrize(("mode", "expected"), [("buffered", {200}), ("full_duplex", {503})])
async def test_when_the_sidecar_is_killed_each_ends_in_the_way_that_is_documented(
    stack: Start, mode: Mode, expected: set[int]
) -> None:
    """BUFFERED: Envoy sends them on, without advice. In full duplex it has no copy of the body: each gets a 503."""
    pool = await stack(engine(), mode=mode, admission=ADMISSION, models=AS_SLOW_AS_IT_IS)
    async with thousand_waiting(pool) as tasks:
        assert pool.sidecar is not None
        pool.sidecar.kill()
    ended = Counter(task.result() for task in tasks)
    assert set(ended) == expected, ended
    assert ended.total() == THOUSAND
