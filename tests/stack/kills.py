"""A pool under load whose parts are killed one after the other, and what clients lost: `python -m tests.stack.kills`,
or with `full_duplex` for the other mode of bodies.

Engines, sidecars, Redis and Envoy are processes of their own. Clients ask for models, routes and cascades, streamed and
in one piece, all the time; each kill is in the middle of it, and the part comes back.
"""

from __future__ import annotations

import asyncio
import collections
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from fairlead.config import load
from fairlead.gateway import EnvoyProcess, Mode, bootstrap
from fairlead.processes import free_ports

MODELS = ("small", "small", "large", "large")
KINDS = ("model", "model, streamed", "route", "route, streamed", "cascade", "cascade, streamed")
WORKERS_EACH = 2
CLIENTS = WORKERS_EACH * len(KINDS)
AWAY_S = 2.5  # at least: Envoy checks its sidecars, and those the engines, once a second
WITHIN_S = 120.0  # ends what would hang


@dataclass
class Row:
    """What clients saw while one part was killed and came back."""

    what: str
    sent: collections.Counter[str] = field(default_factory=collections.Counter)
    ended: collections.Counter[str] = field(default_factory=collections.Counter)
    advised: collections.Counter[str] = field(default_factory=collections.Counter)
    lost: collections.Counter[str] = field(default_factory=collections.Counter)
    reasons: list[str] = field(default_factory=list)
    begun: int = 0  # streams under way on the engine when it was killed
    cut: int = 0  # of those, the ones that did not end whole
    blind: int = 0  # answered without the sidecar's advice
    last_blind_s: float = 0.0  # when the last of them was sent, after the kill

    def __str__(self) -> str:
        by_kind = " ".join(f"{self.sent[kind]:6}/{self.lost[kind]}" for kind in KINDS)
        blind = f"{self.blind:6} {self.last_blind_s:6.1f}"
        totals = f"{self.sent.total():6} {self.lost.total():5} {self.begun:5} {self.cut:4}"
        return f"{self.what:28} {totals} {blind}   {by_kind}"


HEADING = (
    f"{'killed, and back':28} {'sent':>6} {'lost':>5} {'begun':>5} {'cut':>4} {'blind':>6} {'last s':>6}   "
    "sent/lost: models, streamed, routes, streamed, cascades, streamed"
)


class Part:
    """A process that can be killed and started again."""

    def __init__(self, name: str, command: Sequence[str], address: str, log: Path) -> None:
        self.name, self.address = name, address
        self._command, self._log = command, log
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)  # noqa: ASYNC220 - it only starts
        host, port = self.address.split(":")
        async with asyncio.timeout(WITHIN_S):
            while True:
                assert self._process.poll() is None, f"{self.name} ended:\n{self._log.read_text()}"
                try:
                    (await asyncio.open_connection(host, int(port)))[1].close()
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    return

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> None:
        assert self._process is not None
        async with asyncio.timeout(WITHIN_S):
            while self._process.poll() is None:  # noqa: ASYNC110 - a process sets no event
                await asyncio.sleep(0.02)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@dataclass
class World:
    url: str
    engines: list[Part]
    sidecars: list[Part]
    redis: Part
    client: aiohttp.ClientSession
    streams: collections.Counter[str] = field(default_factory=collections.Counter)  # under way now, by endpoint

    async def kill(self, part: Part, number: signal.Signals) -> Row:
        """Kill `part` under load and start it again. Requests of each kind end before, while it is away, and after.

        Where another sidecar is left, it advises each kind while `part` is away.
        """
        row = Row(f"{part.name}, {number.name}")
        killed_at = [float("inf")]
        stop = asyncio.Event()
        asking = [
            asyncio.create_task(self._ask_until(stop, kind, row, part, killed_at)) for kind in KINDS * WORKERS_EACH
        ]
        await self._more(row.ended)
        if part in self.engines:
            await self._until_streams_at(part)
        row.begun = self.streams[part.address]
        killed_at[0] = time.monotonic()
        part.kill(number)
        await part.ended()
        await asyncio.sleep(max(0.0, AWAY_S - (time.monotonic() - killed_at[0])))
        await self._more(row.advised if self.sidecars != [part] else row.ended)
        await part.start()
        await self._until_advised()
        await self._more(row.advised)
        stop.set()
        await asyncio.gather(*asking)
        return row

    async def _more(self, counts: collections.Counter[str]) -> None:
        """Wait until each client of each kind may have counted once more, with a request that it sent since."""
        enough = {kind: counts[kind] + 2 * WORKERS_EACH for kind in KINDS}
        async with asyncio.timeout(WITHIN_S):
            while any(counts[kind] < least for kind, least in enough.items()):  # noqa: ASYNC110 - tasks that count
                await asyncio.sleep(0.02)

    async def _ask_until(self, stop: asyncio.Event, kind: str, row: Row, victim: Part, killed_at: list[float]) -> None:
        while not stop.is_set():
            model = {"model": "large", "route": "auto", "cascade": "answer"}[kind.partition(",")[0]]
            streams = kind.endswith("streamed")
            row.sent[kind] += 1
            sent_s = time.monotonic()
            reason, headers = await self._ask(model, streams=streams)
            row.ended[kind] += 1
            if reason and streams and headers.get("x-fairlead-endpoint") == victim.address:
                row.cut += 1
            elif reason:
                row.lost[kind] += 1
                row.reasons.append(f"{kind}: {reason}")
            if "x-fairlead-decision" in headers:
                row.advised[kind] += 1
            elif headers and time.monotonic() > killed_at[0]:
                row.blind += 1
                row.last_blind_s = max(row.last_blind_s, sent_s - killed_at[0])

    async def _ask(self, model: str, *, streams: bool) -> tuple[str, dict[str, str]]:
        """Why the request is lost, or nothing, and the headers of its answer."""
        tokens = 200 if streams else 40  # the streams take more than a second: some are under way at each kill
        message = {"role": "user", "content": "hello"}
        body = {"model": model, "max_tokens": tokens, "stream": streams, "messages": [message]}
        headers: dict[str, str] = {}
        session = {"x-session-id": f"s{time.monotonic_ns() % 50}"}
        try:
            async with self.client.post(f"{self.url}/v1/chat/completions", json=body, headers=session) as answer:
                headers = {name.lower(): value for name, value in answer.headers.items()}
                with self._streaming(headers.get("x-fairlead-endpoint", "") if streams else ""):
                    text = await answer.read()
                if answer.status != 200:
                    return f"{answer.status} {text[:200]!r}", headers
                whole = text.rstrip().endswith(b"data: [DONE]") if streams else "choices" in json.loads(text)
                return ("" if whole else f"not whole: {text[-100:]!r}"), headers
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return repr(error), headers

    @contextmanager
    def _streaming(self, endpoint: str) -> Iterator[None]:
        self.streams[endpoint] += 1
        try:
            yield
        finally:
            self.streams[endpoint] -= 1

    async def _until_streams_at(self, engine: Part) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not self.streams[engine.address]:  # noqa: ASYNC110 - tasks that count
                await asyncio.sleep(0.02)

    async def _until_advised(self) -> None:
        async with asyncio.timeout(WITHIN_S):
            while True:
                async with self.client.get(f"{self.url}/v1/models") as answer:
                    if b'"owned_by":"fairlead"' in await answer.read():
                        return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def world(folder: Path, sidecars: int, mode: Mode = "buffered") -> AsyncIterator[World]:
    """Four engines of two models, a judge, Redis, Envoy, and so many sidecars."""
    async with AsyncExitStack() as cleanup:

        async def start(name: str, command: Sequence[str], address: str) -> Part:
            part = Part(name, command, address, folder / f"{name}.log")
            cleanup.callback(part.end)
            await part.start()
            return part

        listen, admin, redis_at = (f"127.0.0.1:{port}" for port in free_ports(3))
        engines_at = [f"127.0.0.1:{port}" for port in free_ports(len(MODELS))]
        ports = free_ports(2 * sidecars)
        grpc, admins = ([f"127.0.0.1:{port}" for port in ports[start::2]] for start in (0, 1))
        binary = shutil.which("redis-server")
        assert binary, "install Debian's package redis-server"
        redis = await start(
            "Redis", [binary, "--port", redis_at.split(":")[1], "--save", "", "--dir", str(folder)], redis_at
        )
        engines = [
            await start(f"engine {number} ({model})", _engine(model, address), address)
            for number, (model, address) in enumerate(zip(MODELS, engines_at, strict=True), 1)
        ]
        judge = await _judge(cleanup)
        document: dict[str, Any] = {
            "gateway": {"listen": listen, "processors": grpc},
            "pool": {"endpoints": [{"address": a, "model": m} for a, m in zip(engines_at, MODELS, strict=True)]},
            "routes": {
                "auto": ["small", "large"],
                "answer": {
                    "cascade": ["small", "large"],
                    "thresholds": [50],
                    "judge": {"url": judge, "model": "grader"},
                },
            },
            "sessions": {"store": f"redis://{redis_at}/0"},
            # Equal engines, all of which have streams at each kill: a busy machine must not make some look slower.
            "policy": {"name": "fairlead", "rtt_weight": 0},
            "observe": {"answers_per_second": 0},
        }
        found = []
        for number in range(sidecars):
            path = folder / f"fairlead-{number}.yaml"
            here = {"listen": {"grpc": grpc[number], "admin": admins[number], "drain_s": 5}}
            path.write_text(yaml.safe_dump(document | here), encoding="utf-8")
            command = [sys.executable, "-m", "fairlead", "serve", "--config", str(path)]
            name = "the sidecar" if sidecars == 1 else f"sidecar {number + 1} of {sidecars}"
            found.append(await start(name, command, grpc[number]))
        envoy = EnvoyProcess(bootstrap(load(path), admin_address=admin, mode=mode))
        await cleanup.enter_async_context(envoy)
        limit = aiohttp.ClientTimeout(total=WITHIN_S)
        client = await cleanup.enter_async_context(aiohttp.ClientSession(timeout=limit))
        running = World(f"http://{listen}", engines, found, redis, client)
        await running._until_advised()
        yield running


def _engine(model: str, address: str) -> list[str]:
    command = [sys.executable, "-m", "fairlead", "engine", "--model", model, "--listen", address]
    return [*command, "--time-scale", "4"]


async def _judge(cleanup: AsyncExitStack) -> str:
    """Finds every second answer good enough."""
    asked = 0

    async def handle(request: web.Request) -> web.Response:
        nonlocal asked
        await request.read()
        asked += 1
        message = {"role": "assistant", "content": "100" if asked % 2 else "0"}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    cleanup.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


async def main(mode: Mode) -> int:
    print(HEADING)
    lost = 0
    for sidecars in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            async with world(Path(folder), sidecars, mode) as running:
                others = (*running.engines, running.redis) if sidecars == 1 else ()
                for part in (*running.sidecars, *others):
                    for number in (signal.SIGKILL, signal.SIGTERM):
                        row = await running.kill(part, number)
                        print(row, *sorted(set(row.reasons))[:3], sep="\n    ", flush=True)
                        lost += row.lost.total()
    return 1 if lost else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as for Ctrl-C, its parts end with it
    try:
        sys.exit(asyncio.run(main("full_duplex" if sys.argv[1:] == ["full_duplex"] else "buffered")))
    except KeyboardInterrupt:
        sys.exit("ended before the last of them")
