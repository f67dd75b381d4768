"""One request through a simulated engine: tokens, an answer, its time in the engine, and the response."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from aiohttp import web

from fairlead.tools.simulate import audio, wire
from fairlead.tools.simulate.answers import Answerer, EngineAnswer
from fairlead.tools.simulate.asks import Ask, AskError
from fairlead.tools.simulate.kv_exchange import KvExchange
from fairlead.tools.simulate.pooling import PoolingFormat
from fairlead.tools.simulate.realtime import Generation, RealtimeEngine
from fairlead.tools.simulate.replies import Reply, ReplyFormat
from fairlead.tools.simulate.tokens import Tokens, from_ids, ids_of, tokenize

_STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


class Inference:
    """Answers for one model."""

    def __init__(
        self,
        model: str,
        realtime: RealtimeEngine,
        answerer: Answerer,
        exchange: KvExchange | None = None,
        *,
        names: Collection[str] | None,
        adapters: Collection[str] = (),
    ) -> None:
        self._model = model
        self._names = names  # that requests may ask for; None: any
        self._adapters = adapters
        self._realtime = realtime
        self._answerer = answerer
        self._exchange = exchange
        self._parameters = realtime.engine.parameters

    async def generate(self, request: web.Request, dialect: ReplyFormat, body: dict[str, Any]) -> web.StreamResponse:
        self.check_model(body)
        ask = dialect.read(body)
        adapter = self._adapter(body)
        prompt = self.tokens_of(ask.prompt, ask.cache_salt + adapter)
        answer = self._answer(ask, prompt.count)
        transfer = body.get("kv_transfer_params") if self._exchange is not None else None
        if self._exchange is not None and isinstance(transfer, dict):
            await self._exchange.take(transfer, prompt)
        whole_answer = prompt.followed_by(ids_of(answer.tokens))
        generation = self._realtime.submit(prompt, whole_answer, every_token=ask.stream, adapter=adapter)
        try:
            if ask.stream:
                return await self._stream(request, dialect, ask, prompt, answer, generation)
            await generation.end()
            reply = self._reply(prompt, answer, generation)
            if request.get(wire.MISCOUNT):
                reply = replace(reply, prompt_tokens=reply.prompt_tokens + 1)
            whole = dialect.whole(reply)
            if self._exchange is not None and isinstance(transfer, dict):
                whole["kv_transfer_params"] = await self._exchange.offer(transfer, prompt)
            return await wire.send_whole(request, whole)
        finally:
            self._realtime.leave(generation)

    async def pool(self, request: web.Request, pooling: PoolingFormat, body: dict[str, Any]) -> web.StreamResponse:
        """An answer that needs prompts computed, and nothing generated."""
        self.check_model(body)
        prompts = [self.tokens_of(prompt) for prompt in pooling.read(body)]
        await self._compute([(prompt, prompt) for prompt in prompts])
        return await wire.send_whole(request, pooling.write(body, self._model, prompts))

    async def hear(self, request: web.Request) -> web.StreamResponse:
        """Speech to text."""
        speech = await audio.read_speech(request)
        self.check_model({"model": speech.model})
        prompt = self.tokens_of(speech.prompt)
        answer = self._answerer.answer(
            "", "", prompt_tokens=prompt.count, max_tokens=speech.words, temperature=0.0, ignore_eos=True
        )
        await self._compute([(prompt, prompt.followed_by(ids_of(answer.tokens)))])
        if not speech.stream:
            return audio.whole(request.path, speech, "".join(answer.tokens))
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(request)
        for chunk in audio.chunks(request.path, self._model, answer.tokens):
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _compute(self, work: Sequence[tuple[Tokens, Tokens]]) -> None:
        """Wait for the engine to have done all of `work`: prompts, each with itself and its answer."""
        for prompt, _ in work:
            self._check_length(prompt.count, 0)
        generations: list[Generation] = []
        try:
            generations.extend(self._realtime.submit(prompt, whole, every_token=False) for prompt, whole in work)
            for generation in generations:
                await generation.end()
        finally:
            for generation in generations:
                self._realtime.leave(generation)

    def check_model(self, body: dict[str, Any]) -> None:
        """A body without a model means the served one, as in vLLM."""
        model = body.get("model")
        if model is not None and self._names is not None and model not in self._names:
            raise AskError(f"The model `{model}` does not exist.", status=404, param="model")

    def _adapter(self, body: dict[str, Any]) -> str:
        """That the body names, as its model; SGLang's is `base:adapter`, or `lora_path` next to the model."""
        name = str(body.get("model")).removeprefix(f"{self._model}:")
        if self._names is None and name not in self._adapters:
            name = str(body.get("lora_path"))
        return name if name in self._adapters else ""

    def tokens_of(self, prompt: str | list[int], salt: str = "") -> Tokens:
        if isinstance(prompt, str):
            return tokenize(prompt, self._parameters.block_size, self._parameters.max_model_len, salt)
        return from_ids(prompt, self._parameters.block_size, salt)

    def _answer(self, ask: Ask, prompt_tokens: int) -> EngineAnswer:
        self._check_length(prompt_tokens, ask.max_tokens if ask.max_tokens is not None else 1)
        answer = self._answerer.answer(
            ask.prompt if isinstance(ask.prompt, str) else "",
            ask.user_text,
            prompt_tokens=prompt_tokens,
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            ignore_eos=ask.ignore_eos,
        )
        room = self._parameters.max_model_len - prompt_tokens
        return answer if len(answer.tokens) <= room else EngineAnswer(answer.tokens[:room], cut=True)

    def _check_length(self, prompt_tokens: int, output_tokens: int) -> None:
        limit = self._parameters.max_model_len
        if prompt_tokens + output_tokens > limit:
            raise AskError(
                f"This model's maximum context length is {limit} tokens. However, you requested {output_tokens} output "
                f"tokens and your prompt contains at least {prompt_tokens} input tokens. Please reduce the length of "
                "the input prompt or the number of requested output tokens.",
                param="input_tokens",
            )

    def _reply(self, prompt: Tokens, answer: EngineAnswer, generation: Generation) -> Reply:
        return Reply(
            id=uuid4().hex,
            created_s=int(time.time()),
            model=self._model,
            prompt_tokens=prompt.count,
            cached_tokens=generation.cached_tokens,
            tokens=answer.tokens,
            cut=answer.cut,
        )

    async def _stream(
        self,
        request: web.Request,
        dialect: ReplyFormat,
        ask: Ask,
        prompt: Tokens,
        answer: EngineAnswer,
        generation: Generation,
    ) -> web.StreamResponse:
        """Server-sent events. The headers are sent before the first token exists, as in vLLM."""
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(request)
        reply = self._reply(prompt, answer, generation)
        if dialect.opens_early:
            await response.write(dialect.opening(reply))
        await generation.more()
        reply = replace(reply, cached_tokens=generation.cached_tokens)
        if not dialect.opens_early:
            await response.write(dialect.opening(reply))
        sent = 0
        while True:
            ready = generation.generated_tokens
            if ready > sent:
                piece = "".join(answer.tokens[sent:ready])
                sent = ready
                await response.write(dialect.delta(reply, piece, sent))
                if request.get(wire.CUT):
                    await wire.close(request)
            if generation.finished and sent == generation.generated_tokens:
                break
            await generation.more()
        await response.write(dialect.closing(reply, ask.include_usage))
        await response.write_eof()
        return response
