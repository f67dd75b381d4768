"""A simulated vLLM or SGLang engine over HTTP: what a test or the demo starts in place of a real one.

Answers `/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/embeddings`, `/v1/messages` (Anthropic) and
`/generate` (SGLang), streaming or not, and `/v1/models`, `/health`, `/version`, `/tokenize`, `/metrics` and
`/reset_prefix_cache`. Times come from the engine model, texts from `simulate.answers`. Errors have OpenAI's envelope on
every path, which on `/v1/messages` and `/generate` is not what a real engine sends.

For tests: `POST /fault` and `DELETE /fault` (see `simulate.faults`), and `GET /last-request`, which returns the raw
headers, in order, and the exact body (base64) of the last request for inference, so that a test sees what a proxy
altered.

    async with running_engine(EngineOptions(model="granite-3.1-2b")) as engine:
        await client.post(f"http://{engine.address}/v1/chat/completions", json=...)
"""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from fairlead.core.capability import NEUTRAL, Capability
from fairlead.simulate import asks, wire
from fairlead.simulate.answers import Answerer
from fairlead.simulate.asks import AskError
from fairlead.simulate.engine import Engine, RequestRefusedError
from fairlead.simulate.engine_metrics import EngineKind, EngineMetrics
from fairlead.simulate.faults import Fault, Faults, Leg, parse_fault
from fairlead.simulate.inference import Inference
from fairlead.simulate.kv_exchange import KvExchange, KvOptions
from fairlead.simulate.parameters import EngineParameters
from fairlead.simulate.realtime import RealtimeEngine
from fairlead.simulate.replies import DIALECTS

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_HEADER_BYTES: Final = 64 * 1024
VERSIONS: Final = {"vllm": "0.32.0", "sglang": "0.5.23"}  # those whose metrics and shapes these are
_STOP_TIMEOUT_S: Final = 0.1  # an engine that is stopped cuts what still runs
_CONTROL_PATHS: Final = frozenset({"/fault", "/last-request"})
_EMBEDDINGS_PATH: Final = "/v1/embeddings"
_INFERENCE_PATHS: Final = frozenset({*DIALECTS, _EMBEDDINGS_PATH})


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`capability` is how often the model is right; `seed` draws the answers above temperature 0; port 0 is any."""

    model: str
    kind: EngineKind = "vllm"
    host: str = "127.0.0.1"
    port: int = 0
    parameters: EngineParameters = field(default_factory=EngineParameters)
    capability: Capability = NEUTRAL
    time_scale: float = 1.0
    seed: int = 0
    kv: KvOptions | None = None  # without: no KV connector
    version: str = ""  # that it says it is; empty: that of VERSIONS


class RunningEngine:
    """An engine that listens at `address` (host:port); `engine` is its model, `faults` what `/fault` sets."""

    def __init__(self, address: str, server: _Server, runner: web.AppRunner) -> None:
        self.address = address
        self.engine = server.engine
        self.faults = server.faults
        self.exchange = server.exchange
        self._runner = runner

    async def stop(self) -> None:
        """Close the ports and every connection, in the middle of an answer too. Calling it again does nothing."""
        await self._runner.cleanup()
        if self.exchange is not None:
            await self.exchange.stop()


@asynccontextmanager
async def running_engine(options: EngineOptions) -> AsyncIterator[RunningEngine]:
    """Run an engine on the caller's event loop. Raises OSError when the port is taken."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.create_server((options.host, options.port), family=family, backlog=1024)
    server = _Server(options)
    runner = web.AppRunner(
        server.app(),
        access_log=None,
        handler_cancellation=True,  # a client that goes away aborts its request, as in vLLM
        shutdown_timeout=_STOP_TIMEOUT_S,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        auto_decompress=False,
    )
    try:
        await runner.setup()
        if server.exchange is not None:
            await server.exchange.start()
        await web.SockSite(runner, listener).start()
        host, port = listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        yield RunningEngine(address, server, runner)
    finally:
        await runner.cleanup()
        if server.exchange is not None:
            await server.exchange.stop()
        server.realtime.close()
        listener.close()


class _Server:
    def __init__(self, options: EngineOptions) -> None:
        self.engine = Engine(options.parameters)
        self.faults = Faults()
        self._options = options
        nixl = options.kv is not None and options.kv.connector == "nixl"
        self._metrics = EngineMetrics(options.kind, options.model, self.engine, nixl=nixl)
        self.realtime = RealtimeEngine(self.engine, options.time_scale, self._metrics.observe_first_token)
        self.exchange: KvExchange | None = None
        if options.kv is not None:
            self.exchange = KvExchange(
                options.kv,
                self.engine,
                options.host,
                gone=lambda: self.faults.no_bootstrap,
                die=lambda: self.faults.set(Fault("down")),
                transferred=self._metrics.observe_transfer,
            )
        answerer = Answerer(options.model, options.capability, options.seed)
        self._inference = Inference(options.model, self.realtime, answerer, self.exchange)
        self._started_s = int(time.time())
        self._last_request: dict[str, Any] | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        for path in DIALECTS:
            app.router.add_post(path, self._generate)
        app.router.add_post(_EMBEDDINGS_PATH, self._embed)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics_page)
        app.router.add_post("/fault", self._set_fault)
        app.router.add_delete("/fault", self._clear_fault)
        app.router.add_get("/last-request", self._show_last_request)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Faults, and errors in the engine's own envelope."""
        try:
            if request.path in _INFERENCE_PATHS and request.method == "POST":
                await self._record(request)
                fault = self.faults.strike(_leg(await request.read()))
                if fault is not None:
                    await self._strike(request, fault)
            elif self.faults.down and request.path not in _CONTROL_PATHS:
                return wire.error_response(503, "The engine is down")
            return await handler(request)
        except AskError as error:
            return wire.error_response(error.status, str(error), param=error.param)
        except RequestRefusedError as error:
            return wire.error_response(400, f"The request cannot fit this engine: {error}")
        except RecursionError:
            return wire.error_response(400, "The body is nested too deeply")
        except web.HTTPRequestEntityTooLarge:
            return wire.error_response(413, f"The body is larger than {MAX_BODY_BYTES} bytes")

    async def _record(self, request: web.Request) -> None:
        body = await request.read()
        self._last_request = {
            "method": request.method,
            "path": request.path_qs,
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in request.raw_headers],
            "body": base64.b64encode(body).decode(),
        }

    async def _strike(self, request: web.Request, fault: Fault) -> None:
        """Raise or never return when the fault leaves nothing to handle."""
        if fault.kind == "slow":
            await asyncio.sleep(fault.delay_ms / 1000)
        elif fault.kind == "down":
            raise AskError("The engine is down", status=503)
        elif fault.kind == "error":
            raise AskError("The engine failed as it was asked to", status=fault.status)
        elif fault.kind == "reset":
            await wire.reset(request)
        elif fault.kind == "hang":
            await wire.until_the_client_leaves()
        else:
            request[wire.MISCOUNT if fault.kind == "miscount" else wire.CUT] = True

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = asks.parse_json(await request.read())
        return await self._inference.generate(request, DIALECTS[request.path], body)

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        return await self._inference.embed(request, asks.parse_json(await request.read()))

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = asks.parse_json(await request.read())
        self._inference.check_model(body)
        tokens = self._inference.tokens_of(asks.read_tokenize(body))
        limit = self._options.parameters.max_model_len
        return wire.json_response({"count": tokens.count, "max_model_len": limit, "tokens": tokens.ids.tolist()})

    async def _reset_prefix_cache(self, _request: web.Request) -> web.StreamResponse:
        self.engine.pool.clear_cache()
        return web.Response()

    async def _models(self, _request: web.Request) -> web.StreamResponse:
        model = {
            "id": self._options.model,
            "object": "model",
            "created": self._started_s,
            "owned_by": self._options.kind,
            "root": self._options.model,
            "parent": None,
            "max_model_len": self._options.parameters.max_model_len,
        }
        return wire.json_response({"object": "list", "data": [model]})

    async def _health(self, _request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.StreamResponse:
        return wire.json_response({"version": self._options.version or VERSIONS[self._options.kind]})

    async def _metrics_page(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._metrics.page(), headers={"content-type": "text/plain; version=0.0.4"})

    async def _set_fault(self, request: web.Request) -> web.StreamResponse:
        try:
            fault = parse_fault(await request.read())
        except ValueError as error:
            return wire.error_response(400, str(error))
        self.faults.set(fault)
        return wire.json_response(msgspec.to_builtins(fault))

    async def _clear_fault(self, _request: web.Request) -> web.StreamResponse:
        self.faults.set(None)
        return web.Response(status=204)

    async def _show_last_request(self, _request: web.Request) -> web.StreamResponse:
        if self._last_request is None:
            return wire.error_response(404, "No request for inference has come yet")
        return wire.json_response(self._last_request)


def _leg(body: bytes) -> Leg | None:
    """Which leg of a KV transfer a request is, by the key that both connectors set."""
    if b'"kv_transfer_params"' not in body:
        return None
    return "import" if b'"do_remote_prefill":true' in body.replace(b" ", b"") else "export"
