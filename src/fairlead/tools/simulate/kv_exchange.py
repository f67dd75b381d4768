"""The KV connector of a simulated vLLM: exports that pin blocks, imports that take time, and the hazards of both.

It speaks the wire format of Mooncake's and NIXL's connectors in vLLM 0.32. Between two simulated engines the blocks
travel as their hashes over HTTP: `GET /query` is Mooncake's own, `POST /pull` stands for its transfer engine.

Hazards, as they were seen on real engines:
- an import without one of Mooncake's three keys is never answered;
- an import that meets an unknown transfer or a dead source computes its prompt after the abort timeout, and one that
  finds no bootstrap server after 0.3 s;
- an import of other tokens than were exported, or too late for NIXL's lease, silently installs wrong KV: `wrong_kv`
  counts it;
- NIXL: an import longer than the export kills the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal
from uuid import uuid4

import aiohttp
import msgspec
from aiohttp import web

from fairlead.tools.simulate import wire
from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.tokens import Tokens

ConnectorKind = Literal["mooncake", "nixl"]

_MOONCAKE_KEYS: Final = ("transfer_id", "remote_engine_id", "remote_bootstrap_addr")
_UNREACHABLE_S: Final = 0.3


class KvOptions(msgspec.Struct, frozen=True):
    """Seconds are of the wall clock."""

    connector: ConnectorKind
    port: int = 0  # port of the bootstrap server; 0 is any
    transfer_ms_per_token: float = 0.03  # as measured on two real engines over loopback: 960 tokens in 0.03 s
    bytes_per_token: int = 1024  # for the model used in that measurement
    abort_timeout_s: float = 30.0  # how long an export is kept, and waited for


class _Export(msgspec.Struct):
    block_hashes: Sequence[int]
    pinned: int  # blocks
    tokens: int
    timer: asyncio.TimerHandle


class _Pulled(msgspec.Struct):
    tokens: int
    block_hashes: list[int]


class SourceGoneError(Exception):
    """The KV did not arrive; the request computes its prompt itself."""


class KvExchange:
    """One engine's connector. Call `offer` after an export request, `take` before an import request."""

    def __init__(
        self,
        options: KvOptions,
        engine: Engine,
        host: str,
        *,
        gone: Callable[[], bool],
        die: Callable[[], None],
        transferred: Callable[[int], None],
    ) -> None:
        self.engine_id = uuid4().hex
        self.wrong_kv = 0
        self.address = ""  # of the bootstrap server
        self._options = options
        self._engine = engine
        self._host = host
        self._gone = gone  # whether the bootstrap server should be down
        self._die = die  # what kills the engine
        self._transferred = transferred  # called with the bytes of each import
        self._exports: dict[str, _Export] = {}
        self._offered = asyncio.Condition()
        self._client: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Raises OSError when the port is taken."""
        app = web.Application()
        app.router.add_get("/query", self._query)
        app.router.add_post("/pull", self._pull)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._options.port, reuse_address=True)
        await site.start()
        self.address = f"{self._host}:{self._runner.addresses[0][1]}"
        self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))

    async def stop(self) -> None:
        for name in list(self._exports):
            self._release(name)
        if self._client is not None:
            await self._client.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def pinned_blocks(self) -> int:
        return sum(export.pinned for export in self._exports.values())

    async def offer(self, params: dict[str, Any], prompt: Tokens) -> dict[str, Any] | None:
        """The prompt was computed: keep its blocks for an import. Returns the answer's transfer parameters, if any."""
        if not params.get("do_remote_decode"):
            return None
        mooncake = self._options.connector == "mooncake"
        name = str(params.get("transfer_id")) if mooncake else uuid4().hex
        hashes, pool = prompt.block_hashes, self._engine.pool
        pinned = pool.match(hashes, len(hashes))
        pool.acquire(hashes, pinned, 0)
        timer = asyncio.get_running_loop().call_later(self._options.abort_timeout_s, self._release, name)
        self._exports[name] = _Export(hashes, pinned, prompt.count, timer)
        async with self._offered:
            self._offered.notify_all()
        if mooncake:
            return None
        host, _, port = self.address.rpartition(":")
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(range(1, len(hashes) + 1)),
            "remote_engine_id": self.engine_id,
            "remote_request_id": name,
            "remote_host": host,
            "remote_port": int(port),
            "tp_size": 1,
        }

    async def take(self, params: dict[str, Any], prompt: Tokens) -> None:
        """Fetch the prompt's KV from the source in `params` before the prompt is computed; on failure, do without."""
        if not params.get("do_remote_prefill"):
            return
        try:
            mooncake = self._options.connector == "mooncake"
            pulled = await (self._from_mooncake(params) if mooncake else self._from_nixl(params))
        except SourceGoneError:
            return
        hashes, blocks = prompt.block_hashes, len(pulled.block_hashes)
        if not mooncake and len(hashes) > blocks:
            self._die()
            await wire.until_the_client_leaves()
        if list(hashes) != pulled.block_hashes[: len(hashes)] or prompt.count < pulled.tokens:
            self.wrong_kv += 1
        block_size, counters = self._engine.parameters.block_size, self._engine.counters
        last = prompt.count == len(hashes) * block_size  # the last token of a prompt is always computed
        taken_tokens = max(0, self._engine.pool.adopt(hashes) - last) * block_size
        counters.prompt_external += taken_tokens
        self._transferred(taken_tokens * self._options.bytes_per_token)

    async def _from_mooncake(self, params: dict[str, Any]) -> _Pulled:
        if any(not params.get(key) for key in _MOONCAKE_KEYS):
            await wire.until_the_client_leaves()
        base = str(params["remote_bootstrap_addr"])
        try:
            ranks = await self._ask(f"{base}/query")
        except SourceGoneError:
            await asyncio.sleep(_UNREACHABLE_S)
            raise
        if params["remote_engine_id"] not in [rank.get("engine_id") for rank in ranks.values()]:
            await asyncio.sleep(self._options.abort_timeout_s)
            raise SourceGoneError
        return await self._pulled(base, str(params["transfer_id"]))

    async def _from_nixl(self, params: dict[str, Any]) -> _Pulled:
        base = f"http://{params.get('remote_host')}:{params.get('remote_port')}"
        try:
            return await self._pulled(base, str(params.get("remote_request_id")))
        except SourceGoneError:
            self.wrong_kv += 1  # the lease has expired: the target reads whatever is there
            raise

    async def _pulled(self, base: str, name: str) -> _Pulled:
        try:
            return msgspec.convert(await self._ask(f"{base}/pull", {"transfer_id": name}), _Pulled)
        except SourceGoneError:
            await asyncio.sleep(self._options.abort_timeout_s)
            raise

    async def _ask(self, url: str, document: object = None) -> dict[str, Any]:
        assert self._client is not None
        try:
            async with self._client.request("GET" if document is None else "POST", url, json=document) as response:
                if response.status != 200:
                    raise SourceGoneError
                return dict(await response.json())
        except aiohttp.ClientError:
            raise SourceGoneError from None

    def _release(self, name: str) -> None:
        export = self._exports.pop(name, None)
        if export is not None:
            export.timer.cancel()
            self._engine.pool.release(export.block_hashes, export.pinned, 0)

    # ---- requests of other engines and the router -------------------------------------------------------------------

    async def _query(self, request: web.Request) -> web.StreamResponse:
        if self._gone():
            await wire.reset(request)
        worker = {"0": {"0": f"tcp://{self.address}"}}
        return wire.json_response({"0": {"engine_id": self.engine_id, "worker_addr": worker}})

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        name = (await request.json())["transfer_id"]
        try:
            async with asyncio.timeout(self._options.abort_timeout_s), self._offered:
                await self._offered.wait_for(lambda: name in self._exports)
        except TimeoutError:
            return wire.json_response({}, status=404)
        export = self._exports[name]
        await asyncio.sleep(export.tokens * self._options.transfer_ms_per_token / 1e3)
        self._release(name)
        return wire.json_response({"tokens": export.tokens, "block_hashes": list(export.block_hashes)})
