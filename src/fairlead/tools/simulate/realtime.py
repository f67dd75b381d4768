"""The engine model in real time on an event loop: makes steps when they are due, and wakes waiting answers.

The model's clock runs `time_scale` times as fast as the wall clock. A late event loop does not slow the model down:
overdue steps are made at their own times, and only their results arrive late.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_request import EngineRequest, EventKind
from fairlead.tools.simulate.tokens import Tokens


class Generation:
    """One request in the engine, for the one task that waits for its tokens."""

    def __init__(self, request_id: str, submitted_ms: float) -> None:
        self.request_id = request_id
        self.submitted_ms = submitted_ms
        self.generated_tokens = 0
        self.cached_tokens = 0
        self.finished = False
        self._news = asyncio.Event()

    async def more(self) -> None:
        """Wait for the next token or tokens, or the end."""
        await self._news.wait()
        self._news.clear()

    async def end(self) -> None:
        while not self.finished:
            await self.more()

    def tell(self, generated_tokens: int, cached_tokens: int, *, finished: bool) -> None:
        self.generated_tokens = generated_tokens
        self.cached_tokens = cached_tokens
        self.finished = finished
        self._news.set()


class RealtimeEngine:
    """`on_first_token` is called with each request's time to first token, in wall-clock seconds."""

    def __init__(self, engine: Engine, time_scale: float, on_first_token: Callable[[float], None]) -> None:
        self.engine = engine
        self._time_scale = time_scale
        self._on_first_token = on_first_token
        self._started_s = time.monotonic()
        self._ids = itertools.count()
        self._generations: dict[str, Generation] = {}
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, prompt: Tokens, whole: Tokens, *, every_token: bool, adapter: str = "") -> Generation:
        """Start generating: `whole` is the prompt with its answer. Raises RequestRefusedError."""
        now_ms = self._advance()
        request = EngineRequest(
            id=str(next(self._ids)),
            prompt_tokens=prompt.count,
            output_tokens=whole.count - prompt.count,
            block_hashes=whole.block_hashes,
            every_token=every_token,
            adapter=adapter,
        )
        self.engine.submit(request, now_ms)
        generation = self._generations[request.id] = Generation(request.id, now_ms)
        self._set_timer()
        return generation

    def leave(self, generation: Generation) -> None:
        """Release a generation; if it has not finished, it is aborted."""
        if self._generations.pop(generation.request_id, None) is None:
            return
        self.engine.abort(generation.request_id, self._advance())
        self._set_timer()

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _advance(self) -> float:
        """Make all steps that are due; returns the model's time."""
        now_ms = (time.monotonic() - self._started_s) * 1000 * self._time_scale
        while (due_ms := self.engine.next_step_ms()) is not None and due_ms <= now_ms:
            for event in self.engine.step(due_ms):
                generation = self._generations.get(event.request_id)
                if generation is None or event.kind is EventKind.PREEMPTED:
                    continue
                if event.kind is EventKind.FIRST_TOKEN:
                    self._on_first_token((event.at_ms - generation.submitted_ms) / 1000 / self._time_scale)
                finished = event.kind is EventKind.FINISHED
                if finished:
                    del self._generations[event.request_id]
                generation.tell(event.generated_tokens, event.cached_tokens, finished=finished)
        return now_ms

    def _on_timer(self) -> None:
        self._advance()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        due_ms = self.engine.next_step_ms()
        if due_ms is not None:
            due_s = self._started_s + due_ms / 1000 / self._time_scale
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - time.monotonic()), self._on_timer)
