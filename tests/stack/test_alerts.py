"""Each alert of deploy/ by its real fault: a real sidecar, Envoy and Prometheus, and a minute is a second.

The rules are those of deploy/, durations of a `for` shortened as they are read (`quick_rules`); no threshold is changed
but that of an age. Nothing may fire meanwhile but the alert and what `also` names, so that a fault wakes nobody with a
wrong sentence. promtool evaluates the rules over real minutes, in alerts_test.yaml.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import aiohttp
import grpc.aio
import pytest
import yaml
import zmq.asyncio

import fairlead.gateway.pb.endpoint_discovery_pb2 as pb
from fairlead.config import load
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.gateway.endpoint_discovery import STREAM_ENDPOINTS, TYPE_URL
from fairlead.processes import free_ports
from fairlead.tools.simulate.faults import Fault
from fairlead.tools.simulate.server import running_engine
from tests.engines.kv_world import Publisher, stored
from tests.redis.server import RedisServer
from tests.stack.conftest import WITHIN_S, Stack, Start, engine
from tests.stack.prometheus import RULES, Prometheus, prometheus, quick_rules
from tests.stack.test_admission import LONG, held
from tests.stack.test_cascade import QUESTION, Judge, judge, routes
from tests.tracing.test_tracer import collecting
from tests.waiting import until

__all__ = ["judge"]  # the fixture

pytestmark = pytest.mark.slow

SCRAPED_EVERY: Final = "250ms"
HEALTHY_S: Final = 6.0  # longer than any `for`, so that an alert of a healthy pool would fire
OBSERVED: Final = {"interval_ms": 100, "timeout_ms": 10_000, "answers_per_second": 1000, "messages_per_second": 10_000}
Step = Callable[[], Awaitable[object]]
BROKEN_POLICY: Final = """
    from fairlead.policies.registry import Rule

    class Broken(Rule, frozen=True):
        def rank(self, request, candidates, rng):
            raise RuntimeError("a bug")
"""


class Watched:
    """A pool, and the alerts that its Prometheus fires."""

    def __init__(self, pool: Stack, scraping: Prometheus) -> None:
        self.pool = pool
        self._scraping = scraping

    async def fires(self, alert: str, step: Step | None = None, *, also: Collection[str] = ()) -> None:
        """Take `step` again and again until `alert` fires and, but for those of `also`, no other does.

        Sooner another may be right: on a machine without CPU to spare decisions are slow, and scrapes are missed.
        """
        fired: list[set[str]] = []  # as it changed, so that a failure tells what came in between

        async def alerted_alone() -> bool:
            if step is not None:
                await step()
            firing = await self._scraping.firing()
            if fired[-1:] != [firing]:
                fired.append(firing)
            return alert in firing and firing <= {alert, *also}

        try:
            await until(alerted_alone, within_s=4 * WITHIN_S)  # one waits for a minute of ours before it can fire
        except AssertionError:
            raise AssertionError(f"{alert} did not come to fire alone; these did, in turn: {fired}") from None

    async def chat(self) -> None:
        with suppress(aiohttp.ClientError):
            await self.pool.chat(model="small")
        await asyncio.sleep(0.05)


@asynccontextmanager
async def watched(pool: Stack, folder: Path) -> AsyncIterator[Watched]:
    """The pool is well: at the start nothing fires."""
    async with prometheus(pool, folder, rules=quick_rules(folder, SCRAPED_EVERY), interval=SCRAPED_EVERY) as scraping:

        async def scraped() -> bool:
            return any(each["value"][1] == "1" for each in await scraping.ask("up"))

        async def nothing_fires() -> bool:
            return await scraping.firing() == set()

        await until(scraped, "the sidecar is scraped")
        await until(nothing_fires, "nothing fires")  # where the first scrape came late, the sidecar was down until then
        yield Watched(pool, scraping)


def test_every_alert_has_a_fault_here() -> None:
    alerts = {rule["alert"] for path in RULES for rule in _rules(path) if "alert" in rule}
    assert set(re.findall(r'\.fires\(\s*"(\w+)"', Path(__file__).read_text(encoding="utf-8"))) == alerts


def _rules(path: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


async def test_a_pool_at_work_fires_nothing(stack: Start, tmp_path: Path) -> None:
    pool = await stack(engine("small"), engine("small"), observe=OBSERVED, decisions={"path": "log"})
    async with prometheus(pool, tmp_path, rules=quick_rules(tmp_path, SCRAPED_EVERY), interval=SCRAPED_EVERY) as world:
        loop = asyncio.get_running_loop()
        began_s = quiet_s = loop.time()
        while loop.time() < quiet_s + 2 * HEALTHY_S:
            assert (await pool.chat(model="small", stream=True)).status == 200
            if firing := await world.firing():  # a machine without CPU to spare may be at fault for a while
                assert loop.time() < began_s + 2 * WITHIN_S, firing
                quiet_s = loop.time()


async def test_a_killed_sidecar(stack: Start, tmp_path: Path) -> None:
    async with watched(await stack(engine("small")), tmp_path) as world:
        world.pool.stop_sidecar(signal.SIGKILL)
        await world.fires("FairleadDown", world.chat)


async def test_a_model_without_an_engine_left(stack: Start, tmp_path: Path) -> None:
    async with watched(await stack(engine("small"), engine("large")), tmp_path) as world:
        await world.pool.engines[0].stop()
        # The engine's own failures, before it was ejected, are a share of the requests for a while.
        await world.fires("FairleadNoEndpoint", world.chat, also=("FairleadEndpointDown", "FairleadEnginesFail"))


async def test_an_engine_that_fails_at_some_requests(stack: Start, tmp_path: Path) -> None:
    """Too few in a row to eject it, and no other engine has its model."""
    async with watched(await stack(engine("small"), engine("large")), tmp_path) as world:

        async def one_of_three_fails() -> None:
            for fault in (Fault("error"), None, None):
                world.pool.engines[0].faults.set(fault)
                await world.chat()

        await world.fires("FairleadEnginesFail", one_of_three_fails)


async def test_a_killed_engine(stack: Start, tmp_path: Path) -> None:
    async with watched(await stack(engine("small"), engine("small")), tmp_path) as world:
        await world.pool.engines[0].stop()
        await world.fires("FairleadEndpointDown", world.chat)


async def test_an_engine_that_comes_and_goes(stack: Start, tmp_path: Path) -> None:
    async with watched(await stack(engine("small"), engine("small")), tmp_path) as world:
        faults, address = world.pool.engines[0].faults, world.pool.engines[0].address

        async def goes_and_comes() -> None:
            for fault, up in ((Fault("down"), 0), (None, 1)):
                faults.set(fault)
                await until(partial(is_up, up), f"up is {up}")

        async def is_up(up: int) -> bool:
            return await world.pool.metric("fairlead_endpoint_up", endpoint=address) == up

        # It tells no start time, so one that was gone and has counted nothing since may have restarted.
        await world.fires("FairleadEndpointFlaps", goes_and_comes, also=("FairleadEngineRestarts",))


async def test_an_engine_that_restarts(stack: Start, tmp_path: Path) -> None:
    pool = await stack(engine("small"), engine("large"))
    host, _, port = pool.engines[0].address.rpartition(":")

    async def shows(metric: str, value: int) -> bool:
        return await pool.metric(metric, endpoint=f"{host}:{port}") == value

    async with watched(pool, tmp_path) as world:
        await pool.engines[0].stop()
        for restarts in (1, 2):
            await until(partial(shows, "fairlead_endpoint_up", 0), "it is gone")
            async with running_engine(engine("small", host=host, port=int(port))):
                await until(partial(shows, "fairlead_endpoint_restarts_total", restarts), "the restart is noticed")
        await world.fires("FairleadEngineRestarts")


async def test_an_engine_that_is_back_with_another_model(stack: Start, tmp_path: Path) -> None:
    pool = await stack(engine("small"), engine("small"))
    port = int(pool.engines[1].address.rpartition(":")[2])
    async with watched(pool, tmp_path) as world:
        await pool.engines[1].stop()
        async with running_engine(engine("other", port=port)):
            await world.fires("FairleadEngineOtherModel", world.chat, also=("FairleadEndpointDown",))


async def test_a_prompt_that_kills_engines(stack: Start, tmp_path: Path) -> None:
    pool = await stack(*(engine("small") for _ in range(6)))
    for number in range(6):
        await pool.fault(number, kind="dies", text="deadly")
    await asyncio.gather(*(pool.chat(f"{number} hello", model="small") for number in range(24)))  # each has worked
    async with watched(pool, tmp_path) as world:

        async def deadly_and_others() -> None:
            await pool.chat("a deadly prompt", model="small")
            await world.chat()

        failed = ("FairleadEndpointDown", "FairleadEnginesFail")
        await world.fires("FairleadPromptKillsEngines", deadly_and_others, also=failed)


async def test_an_engine_whose_metrics_are_gone_while_it_serves(stack: Start, tmp_path: Path) -> None:
    """Its model's server was replaced by one without metrics, as SGLang is without `--enable-metrics`."""
    pool = await stack(engine("small"), engine("large"))
    async with watched(pool, tmp_path) as world:
        pool.engines[0].faults.set(Fault("no_metrics"))
        await world.fires("FairleadEngineUnwatched", world.chat)


async def test_a_configuration_with_a_mistake(stack: Start, tmp_path: Path) -> None:
    async with watched(await stack(engine("small")), tmp_path) as world:
        world.pool.write(policy={"name": "no such policy"})
        await world.fires("FairleadReloadRefused", world.chat)


async def test_an_envoy_whose_filter_skips_the_request_headers(stack: Start, tmp_path: Path) -> None:
    pool = await stack(engine("small"))
    other, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    path = pool.config_path.with_name("other.yaml")
    gateway = pool.document["gateway"] | {"listen": other}
    path.write_text(yaml.safe_dump(pool.document | {"gateway": gateway}), encoding="utf-8")
    tree = bootstrap(load(path), admin_address=admin)
    assert skip_request_headers(tree) > 0
    async with watched(pool, tmp_path) as world, EnvoyProcess(tree, ready_within_s=WITHIN_S):

        async def ask() -> None:
            body = {"model": "small", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
            async with pool.client.post(f"http://{other}/v1/chat/completions", json=body) as answer:
                await answer.read()

        await world.fires("FairleadOutOfOrderMessages", ask)


def skip_request_headers(part: object) -> int:
    """Change the processing modes in this tree; how many there were."""
    if isinstance(part, list):
        return sum(map(skip_request_headers, part))
    if not isinstance(part, dict):
        return 0
    changed = 0
    if part.get("request_header_mode") == "SEND":
        part["request_header_mode"], changed = "SKIP", 1
    return changed + sum(map(skip_request_headers, part.values()))


async def test_more_requests_than_the_engines_take(stack: Start, tmp_path: Path) -> None:
    """The engine answers nothing, and each request waits for half a second at most."""
    pool = await held(stack, admission={"begin_within_ms": 50, "max_wait_s": 0.5})
    numbers = count()
    async with watched(pool, tmp_path) as world, asyncio.TaskGroup() as asking:

        async def ask() -> None:
            with suppress(aiohttp.ClientError):
                await pool.chat(f"{next(numbers)} {LONG}", model="small")

        async def one_more() -> None:
            tasks.append(asking.create_task(ask()))
            await asyncio.sleep(0.1)

        tasks: list[asyncio.Task[None]] = []
        try:
            await world.fires("FairleadRefusesForLoad", one_more)
        finally:
            for task in tasks:
                task.cancel()


async def test_a_list_of_engines_that_cannot_be_read(stack: Start, tmp_path: Path) -> None:
    listed = tmp_path / "first/engines.yaml"

    async with running_engine(engine("small")) as more:
        pool = await stack(engine("small"))
        listed.write_text(yaml.safe_dump([more.address]), encoding="utf-8")
        pool.write(discovery={"file": listed.name})

        async def found() -> bool:
            return await pool.metric("fairlead_endpoint_up", endpoint=more.address) == 1

        await until(found, "the listed engine is found")
        async with watched(pool, tmp_path) as world:
            listed.unlink()
            await world.fires("FairleadPoolUnread", world.chat)


async def test_an_envoy_that_refuses_its_endpoints(stack: Start, tmp_path: Path) -> None:
    """The client is ours: every set that the sidecar sends is one that the Envoy of these tests accepts."""
    pool = await stack(engine("small"))
    node = pb.DiscoveryRequest(type_url=TYPE_URL, resource_names=["engines"])
    async with watched(pool, tmp_path) as world, grpc.aio.insecure_channel(pool.document["listen"]["grpc"]) as channel:
        stream = channel.stream_stream(
            STREAM_ENDPOINTS,
            request_serializer=pb.DiscoveryRequest.SerializeToString,
            response_deserializer=pb.DiscoveryResponse.FromString,
        )()
        await stream.write(node)
        pushed = await stream.read()
        assert isinstance(pushed, pb.DiscoveryResponse)
        refusal = pb.DiscoveryRequest(type_url=TYPE_URL, resource_names=["engines"], response_nonce=pushed.nonce)
        refusal.error_detail.message = "malformed"
        await stream.write(refusal)
        await world.fires("FairleadEnvoyRefusesPool", world.chat)


async def test_an_engine_that_a_static_envoy_does_not_know(stack: Start, tmp_path: Path) -> None:
    async with running_engine(engine("small")) as new:
        pool = await stack(engine("small"), gateway={"endpoints": "static"})
        async with watched(pool, tmp_path) as world:
            (first,) = pool.document["pool"]["endpoints"]
            pool.write(pool=pool.document["pool"] | {"endpoints": [first, first | {"address": new.address}]})
            # Both say what is so: nothing is sent to it, and why.
            await world.fires("FairleadEndpointUnknownToEnvoy", world.chat, also=("FairleadEndpointDown",))


async def test_a_judge_that_hangs(stack: Start, tmp_path: Path, judge: Judge) -> None:
    pool = await stack(engine("small"), engine("large"), routes=routes(judge, judge_timeout_s=0.5))
    async with watched(pool, tmp_path) as world:
        judge.hangs = True
        await world.fires("FairleadCascadeJudgeFails", lambda: pool.chat(QUESTION, model="answer"))


async def test_a_killed_redis(stack: Start, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    try:
        pool = await stack(engine("small"), sessions={"store": server.url})

        async def joined() -> bool:
            return await pool.metric("fairlead_store_up") == 1

        await until(joined, "the store is reached")
        async with watched(pool, tmp_path) as world:
            server.kill()
            await world.fires("FairleadStoreDown", world.chat)
    finally:
        server.kill()


async def test_kv_events_that_nobody_can_replay(stack: Start, tmp_path: Path) -> None:
    context = zmq.asyncio.Context()
    publisher = Publisher(context, "arrays")
    try:
        pool = await stack(engine("small"), endpoints=[{"kv_events": {"events": publisher.source.events}}])
        async with asyncio.timeout(WITHIN_S):
            await publisher.subscribed()
        async with watched(pool, tmp_path) as world:
            await publisher.send(1.0, stored("arrays", [11], None, [1, 2, 3, 4]))
            await publisher.send(2.0, stored("arrays", [12], 11, [5, 6, 7, 8]), received=False)
            await publisher.send(3.0, stored("arrays", [13], 12, [9, 10, 11, 12]))
            await world.fires("FairleadKvEventsLost", world.chat)
    finally:
        context.destroy(linger=0)


async def test_a_decision_log_that_cannot_be_written(stack: Start, tmp_path: Path) -> None:
    """A file stands where the folder should be. Rows are written once a minute, so this takes one."""
    pool = await stack(engine("small"), decisions={"path": "log"})
    async with watched(pool, tmp_path) as world:
        folder = pool.config_path.parent / "log"
        if folder.exists():
            folder.rmdir()
        folder.write_text("in the way", encoding="utf-8")
        await world.fires("FairleadDecisionLogDrops", world.chat)


async def test_a_collector_of_traces_that_is_gone(stack: Start, tmp_path: Path) -> None:
    async with AsyncExitStack() as there:
        collector = await there.enter_async_context(collecting())
        tracing = {"endpoint": collector.url.removesuffix("/v1/traces"), "sample": 1.0}
        async with watched(await stack(engine("small"), tracing=tracing), tmp_path) as world:
            await there.aclose()
            await world.fires("FairleadTracesLost", world.chat)


async def test_a_bug_in_a_policy(stack: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    info = site / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[fairlead.policies]\nbroken = broken:Broken\n", encoding="utf-8")
    (site / "broken.py").write_text(dedent(BROKEN_POLICY), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    pool = await stack(engine("small"), engine("small"))
    async with watched(pool, tmp_path) as world:
        pool.write(policy={"name": "broken"})
        await world.fires("FairleadFails", world.chat)


async def test_prompts_of_fifty_thousand_messages(stack: Start, tmp_path: Path) -> None:
    pool = await stack(engine("small"))
    numbers = count()
    async with watched(pool, tmp_path) as world:

        async def ask() -> None:
            first = next(numbers)
            messages = [{"role": "user", "content": f"{first} {number}"} for number in range(50_000)]
            answer = await pool.chat(messages=messages, model="small")
            assert "x-fairlead-decision" in answer.headers, answer

        await world.fires("FairleadSlowDecisions", ask)  # from 10 ms on; on a fast machine, too, it takes longer


async def test_first_tokens_that_take_six_seconds(stack: Start, tmp_path: Path) -> None:
    pool = await stack(engine("small"), observe=OBSERVED)
    async with watched(pool, tmp_path) as world, asyncio.TaskGroup() as asking:
        await pool.fault(0, kind="slow", delay_ms=6000)
        tasks: list[asyncio.Task[object]] = []

        async def one_more() -> None:
            tasks.append(asking.create_task(pool.chat(model="small", stream=True)))
            await asyncio.sleep(0.2)

        try:
            await world.fires("FairleadLateFirstTokens", one_more)
        finally:
            for task in tasks:
                task.cancel()
