"""A simulated vLLM or SGLang engine over HTTP: used by tests and the demo instead of a real one.

Answers `/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/messages` (Anthropic) and `/generate` (SGLang),
streaming or not; `/v1/embeddings`, `/tokenize`, `/detokenize`, `/v1/messages/count_tokens`; `/v1/models`, `/health`,
`/version`, `/metrics` and `/reset_prefix_cache`. As vLLM also rerank, score, classify, pooling (`simulate.pooling`) and
speech to text (`simulate.audio`), as SGLang `/ready` and `/server_info` (`simulate.sglang`). Times come from the engine
model, texts from `simulate.answers`. Errors have OpenAI's envelope on every path, which on `/v1/messages` and
`/generate` is not what a real engine sends.

For tests: `POST /fault` and `DELETE /fault` (see `simulate.faults`), and `GET /last-request`, which returns the raw
headers, in order, and the exact body (base64) of the last request for inference, so that a test sees what a proxy
changed.

    async with running_engine(EngineOptions(model="granite-3.1-2b")) as engine:
        await client.post(f"http://{engine.address}/v1/chat/completions", json=...)
"""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from fairlead.api.paths import COUNT_TOKENS, DETOKENIZE, MODELS, TOKENIZE
from fairlead.core.capability import NEUTRAL, Capability
from fairlead.tools.simulate import asks, audio, sglang, wire
from fairlead.tools.simulate.answers import Answerer
from fairlead.tools.simulate.asks import AskError
from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_metrics import PAGES, EngineMetrics
from fairlead.tools.simulate.engine_request import RequestRefusedError
from fairlead.tools.simulate.faults import Fault, Faults, Leg, parse_fault
from fairlead.tools.simulate.inference import Inference
from fairlead.tools.simulate.kv_exchange import KvExchange, KvOptions
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.pooling import SGLANG_FORMATS, VLLM_FORMATS
from fairlead.tools.simulate.realtime import RealtimeEngine
from fairlead.tools.simulate.replies import FORMATS
from fairlead.tools.simulate.tokens import text_of

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_HEADER_BYTES: Final = 64 * 1024
_STOP_TIMEOUT_S: Final = 0.1  # stopping an engine cuts running requests
_BACKLOG: Final = 2048  # connections that wait to be accepted, as in vLLM and SGLang
_CONTROL_PATHS: Final = frozenset({"/fault", "/last-request"})
_SPEECH_PATHS: Final = (audio.TRANSCRIPTIONS, audio.TRANSLATIONS)
_INFERENCE_PATHS: Final = frozenset({*FORMATS, *VLLM_FORMATS, *_SPEECH_PATHS})


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`capability` is how often the model is right; `seed` draws the answers above temperature 0; port 0 is any."""

    model: str
    kind: str = "vllm"
    host: str = "127.0.0.1"
    port: int = 0
    parameters: EngineParameters = field(default_factory=EngineParameters)
    capability: Capability = NEUTRAL
    time_scale: float = 1.0
    seed: int = 0
    kv: KvOptions | None = None  # without: no KV connector
    version: str = ""  # reported version; empty: the default of its metrics page
    adapters: tuple[str, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)  # of SGLang's /server_info, in place of the usual values


class RunningEngine:
    """An engine that listens at `address` (host:port); `engine` is its model, `faults` what `/fault` sets."""

    def __init__(self, address: str, server: _Server, runner: web.AppRunner) -> None:
        self.address = address
        self.engine = server.engine
        self.faults = server.faults
        self.exchange = server.exchange
        self._runner = runner

    async def stop(self) -> None:
        """Close the ports and every connection, also in the middle of an answer. Calling it again does nothing."""
        await self._runner.cleanup()
        if self.exchange is not None:
            await self.exchange.stop()


@asynccontextmanager
async def running_engine(options: EngineOptions) -> AsyncIterator[RunningEngine]:
    """Run an engine on the caller's event loop. Raises OSError when the port is taken."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.create_server((options.host, options.port), family=family)
    server = _Server(options)
    runner = web.AppRunner(
        server.app(),
        access_log=None,
        handler_cancellation=True,  # a client that disconnects aborts its request, as in vLLM
        shutdown_timeout=_STOP_TIMEOUT_S,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        auto_decompress=False,
    )
    try:
        await runner.setup()
        if server.exchange is not None:
            await server.exchange.start()
        await web.SockSite(runner, listener, backlog=_BACKLOG).start()
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
        self._metrics = EngineMetrics(options.kind, options.model, self.engine, options.time_scale, nixl=nixl)
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
        self._is_sglang = options.kind == "sglang"
        names = None if self._is_sglang else {options.model, *options.adapters}  # SGLang answers to any name
        self._inference = Inference(
            options.model, self.realtime, answerer, self.exchange, names=names, adapters=options.adapters
        )
        self._started_s = int(time.time())
        self._last_request: dict[str, Any] | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        for path in FORMATS:
            app.router.add_post(path, self._generate)
        self._pooling = SGLANG_FORMATS if self._is_sglang else VLLM_FORMATS
        for path in self._pooling:
            app.router.add_post(path, self._pool)
        app.router.add_post(TOKENIZE, self._tokenize)
        app.router.add_post(DETOKENIZE, self._detokenize)
        app.router.add_post(COUNT_TOKENS, self._count_tokens)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_get(MODELS, self._models)
        app.router.add_get("/health", self._health)
        if self._is_sglang:
            app.router.add_get("/ready", sglang.ready)
            app.router.add_get("/server_info", self._server_info)
            app.router.add_post("/flush_cache", self._reset_prefix_cache)
        else:
            app.router.add_get("/version", self._version)
            for path in _SPEECH_PATHS:
                app.router.add_post(path, self._inference.hear)
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
                body = await request.read()
                fault = self.faults.strike(_leg(body), body)
                if fault is not None:
                    await self._strike(request, fault)
            elif self.faults.down and request.path not in _CONTROL_PATHS:
                return wire.error_response(503, "The engine is down")
            elif self.faults.no_metrics and request.path == "/metrics":
                return wire.error_response(404, "Not Found")
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
        """Raise, or never return, if the fault prevents an answer."""
        if fault.kind == "slow":
            await self.faults.delay(fault)
        elif fault.kind == "down":
            raise AskError("The engine is down", status=503)
        elif fault.kind == "error":
            raise AskError("The engine failed as it was asked to", status=fault.status)
        elif fault.kind == "dies":
            self.faults.set(Fault("dies"))
            await wire.reset(request)
        elif fault.kind == "dies_answering":
            self.faults.set(Fault("dies"))
            request[wire.CUT] = True
        elif fault.kind == "reset":
            await wire.reset(request)
        elif fault.kind == "hang":
            await wire.until_the_client_leaves()
        else:
            request[wire.MISCOUNT if fault.kind == "miscount" else wire.CUT] = True

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = asks.parse_json(await request.read())
        most = self._options.info.get("max_queued_requests")
        if most is not None and self.engine.waiting >= most:
            return await sglang.refuse(request, stream=body.get("stream") is True)
        return await self._inference.generate(request, FORMATS[request.path], body)

    async def _pool(self, request: web.Request) -> web.StreamResponse:
        body = asks.parse_json(await request.read())
        return await self._inference.pool(request, self._pooling[request.path], body)

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = asks.parse_json(await request.read())
        self._inference.check_model(body)
        tokens = self._inference.tokens_of(asks.read_tokenize(body))
        limit = self._options.parameters.max_model_len
        answer = {"count": tokens.count, "max_model_len": limit, "tokens": tokens.ids.tolist()}
        return wire.json_response(answer if self._is_sglang else answer | {"token_strs": None})

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        body = asks.parse_json(await request.read())
        self._inference.check_model(body)
        return wire.json_response({"text" if self._is_sglang else "prompt": text_of(asks.read_detokenize(body))})

    async def _count_tokens(self, request: web.Request) -> web.StreamResponse:
        body = asks.parse_json(await request.read())
        self._inference.check_model(body)
        tokens = self._inference.tokens_of(asks.read_anthropic({"max_tokens": 1} | body).prompt)
        return wire.json_response({"input_tokens": tokens.count})

    async def _reset_prefix_cache(self, _request: web.Request) -> web.StreamResponse:
        self.engine.pool.clear_cache()
        return web.Response()

    async def _models(self, _request: web.Request) -> web.StreamResponse:
        base = {
            "id": self._options.model,
            "object": "model",
            "created": self._started_s,
            "owned_by": self._options.kind,
            "root": self._options.model,
            "parent": None,
            "max_model_len": self._options.parameters.max_model_len,
        }
        adapter = base | {"parent": self._options.model, "max_model_len": None}
        adapters = [adapter | {"id": name, "root": name} for name in self._options.adapters]
        return wire.json_response({"object": "list", "data": [base, *adapters]})

    async def _health(self, _request: web.Request) -> web.StreamResponse:
        return await sglang.health(self.engine, self._options.time_scale) if self._is_sglang else web.Response()

    async def _server_info(self, _request: web.Request) -> web.StreamResponse:
        options = self._options
        return sglang.server_info(options.model, options.version, self.engine, dict(options.info))

    async def _version(self, _request: web.Request) -> web.StreamResponse:
        return wire.json_response({"version": self._options.version or PAGES[self._options.kind].version})

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
