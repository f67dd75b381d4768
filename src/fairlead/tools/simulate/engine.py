"""One simulated engine: continuous batching over a KV block cache, driven by a clock that the caller passes in.

Nothing here sleeps, draws at random or reads a clock, so the HTTP server (`simulate.server`) and a trace replay run the
same model. Modelled after vLLM's V1 scheduler: first come first served, decoding first, prefill in chunks with the rest
of a step's token budget, preemption by recompute of the request admitted last. A prompt is admitted when all its blocks
fit, as with vLLM's `scheduler_reserve_full_isl`, and holds them from then on. So is one whose KV another engine has:
vLLM fetches it once there are blocks for it, and computes nothing of it for want of room. The engine gets a request
after its server has processed it, which takes `parameters.request_overhead_ms`. Between two events (an arrival, a
finish, a full block) all steps of a decoding batch are taken to be equal, so they are made in one jump: what its KV
adds to a step, and the engine's pace, are those of the jump's start. Requests with `every_token` get an event at each
step, and both ways give the same times.

    now_ms = 0.0
    engine.submit(EngineRequest("a", prompt_tokens=1000, output_tokens=50), now_ms)
    while (now_ms := engine.next_step_ms()) is not None:
        for event in engine.step(now_ms): ...

The caller makes every step that ends by `now_ms` before it calls `submit` or `abort` with that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from fairlead.tools.simulate.adapters import AdapterSlots
from fairlead.tools.simulate.engine_request import EngineRequest, Event, EventKind, RequestRefusedError, refusal
from fairlead.tools.simulate.equal_steps import EqualSteps
from fairlead.tools.simulate.kv_cache import BlockPool
from fairlead.tools.simulate.parameters import EngineParameters


class _Running:
    """A request in the engine; `tokens_at_join` and `joined_step` give its tokens without counting each."""

    __slots__ = (
        "admitted_ms", "blocks", "cached_tokens", "decoding", "due_step", "first_token_ms", "joined_step",
        "named_blocks", "order", "request", "tokens_at_join", "uncomputed",
    )  # fmt: skip

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.order = 0  # of admission: the greatest is preempted first
        self.cached_tokens = -1  # not admitted yet
        self.admitted_ms = self.first_token_ms = 0.0  # for the first time
        self.uncomputed = 0  # tokens that prefill has still to compute
        self.blocks = 0
        self.named_blocks = 0  # those of them that the prefix cache knows
        self.decoding = False
        self.tokens_at_join = 0
        self.joined_step = 0
        self.due_step = 0  # the step after which it finishes or needs a block


@dataclass(slots=True)
class Counters:
    """Totals since the engine started, in tokens where nothing else is said."""

    prefix_queries: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hits: int = 0
    prompt_computed: int = 0  # tokens of prompts whose prefill ended; recomputing after a preemption does not count
    prompt_cached: int = 0
    prompt_external: int = 0  # cached tokens that came from another engine
    generated: int = 0
    preemptions: int = 0
    finished: int = 0  # requests; of these:
    finished_computed: int = 0
    finished_generated: int = 0
    finished_prefill_ms: float = 0.0  # from its admission to the first token
    finished_decode_ms: float = 0.0  # from there to the last


class Engine:
    """The engine model, see the module. Times are milliseconds of the caller's clock and must not decrease."""

    def __init__(self, parameters: EngineParameters, pace: Callable[[float], float] | None = None) -> None:
        """`pace` is how many times longer than its parameters say a step takes that starts at a time in ms."""
        self.parameters = parameters
        self._pace = pace
        self.counters = Counters()
        self.pool = BlockPool(parameters.num_blocks)
        self.adapters = AdapterSlots(parameters)
        self._ids: set[str] = set()  # ids of all requests in the engine
        self._received: deque[tuple[float, _Running]] = deque()  # held by the server, which passes it on then
        self._waiting: deque[_Running] = deque()
        self._running: dict[str, _Running] = {}  # in order of admission
        self._prefilling: list[_Running] = []  # in order of admission
        self._every_token: dict[str, _Running] = {}  # decoding requests that want an event at each step
        self._decoding = 0
        self._held_tokens = 0  # of decoding requests, in the KV cache
        self._admissions = 0
        self._server_free_ms = 0.0  # when the server has passed on everything received
        self._steps = 0  # steps ended so far
        self._due: list[tuple[int, int, _Running]] = []  # heap of (due_step, order, who)
        self._run = EqualSteps()
        self._chunks: list[tuple[_Running, int]] = []  # prefill tokens computed in the run, which then is of one step

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that the engine has received and not admitted."""
        return len(self._waiting)

    @property
    def adapters_in_use(self) -> tuple[str, ...]:
        """Of requests that run or wait: vLLM 0.32 reports these as running and as waiting."""
        waiting = (each.request.adapter for each in self._waiting)
        return tuple(name for name in dict.fromkeys((*self.adapters.running, *waiting)) if name)

    @property
    def kv_usage(self) -> float:
        """Share of blocks that running requests hold, 0 to 1."""
        return self.pool.used / self.pool.capacity

    def generated_by(self, now_ms: float) -> int:
        """Tokens of answers so far, with those of steps of the present run that have ended."""
        return self.counters.generated + self._run.ended_since(now_ms) * self._decoding

    def submit(self, request: EngineRequest, now_ms: float) -> None:
        """Queue a request. Raises RequestRefusedError if it can never fit, ValueError if its id is already here."""
        if why := refusal(request, self.parameters):
            raise RequestRefusedError(why)
        if request.id in self._ids:
            raise ValueError(f"request {request.id} is already in the engine")
        self._ids.add(request.id)
        if not self.parameters.request_overhead_ms:
            self._queue(_Running(request), now_ms)
            return
        self._server_free_ms = max(self._server_free_ms, now_ms) + self.parameters.request_overhead_ms
        self._received.append((self._server_free_ms, _Running(request)))

    def abort(self, request_id: str, now_ms: float) -> bool:
        """Take a request out; False if it is not (or no longer) here. A step under way for it still takes its time."""
        if request_id not in self._ids:
            return False
        self._ids.remove(request_id)
        entry = self._running.get(request_id)
        if entry is None:
            self._received = deque(each for each in self._received if each[1].request.id != request_id)
            self._waiting = deque(each for each in self._waiting if each.request.id != request_id)
        else:
            self._interrupt(now_ms)
            self._leave(entry)
        return True

    def next_step_ms(self) -> float | None:
        """When to call `step` next; None while there is nothing to do."""
        ends_ms = self._step_ends_ms()
        if self._received and (ends_ms is None or self._received[0][0] < ends_ms):
            return self._received[0][0]
        return ends_ms

    def step(self, now_ms: float) -> list[Event]:
        """End the step, or the run of equal steps, that `next_step_ms` announced; `now_ms` is that time.

        Or receive a request from the server: that is no step, and gives no event.
        """
        if self._received and self._receives_next():
            self._queue(self._received.popleft()[1], now_ms)
            return []
        self._end_steps(1 if self._every_token else self._run.length - self._run.done)
        events: list[Event] = []
        if self._run.done < self._run.length:
            self._report_every_token(events, now_ms)
            return events
        full: list[_Running] = []  # requests that need a block before their next step
        while self._due and self._due[0][0] <= self._steps:
            due_step, order, entry = heappop(self._due)
            if not entry.decoding or entry.due_step != due_step or entry.order != order:
                continue  # it was aborted or preempted
            if self._generated(entry) == entry.request.output_tokens:
                self._finish(entry, events, now_ms)
            else:
                full.append(entry)
        if self._every_token:
            self._report_every_token(events, now_ms)
        if self._chunks:
            self._end_chunks(events, now_ms, full)
        preempted = bool(full) and self._grow(full, events, now_ms)
        self._plan(now_ms, admit=not preempted)
        return events

    def _step_ends_ms(self) -> float | None:
        """When the current step ends, or the current run of equal steps if no request wants each token."""
        return self._run.ends_ms(each=bool(self._every_token))

    def _receives_next(self) -> bool:
        """Whether the next event is that the engine receives a request, of which there is one."""
        ends_ms = self._step_ends_ms()
        return ends_ms is None or self._received[0][0] < ends_ms

    def _queue(self, entry: _Running, now_ms: float) -> None:
        self._waiting.append(entry)
        self._interrupt(now_ms)

    def _generated(self, entry: _Running) -> int:
        return entry.tokens_at_join + (self._steps - entry.joined_step if entry.decoding else 0)

    def _interrupt(self, now_ms: float) -> None:
        """The batch changes at the next step boundary after `now_ms`; without a step under way, at once."""
        if not self._run.length:
            self._plan(now_ms, admit=True)
            return
        self._end_steps(self._run.cut(now_ms))

    def _end_steps(self, count: int) -> None:
        self._run.done += count
        self._steps += count
        self.counters.generated += count * self._decoding
        self._held_tokens += count * self._decoding

    def _report_every_token(self, events: list[Event], now_ms: float) -> None:
        for request_id, entry in self._every_token.items():
            events.append(Event(EventKind.TOKEN, request_id, now_ms, self._generated(entry), entry.cached_tokens))

    def _end_chunks(self, events: list[Event], now_ms: float, full: list[_Running]) -> None:
        """Prefill that ended in this step: its last token gives the first token of the answer."""
        for entry, tokens in self._chunks:
            if self._running.get(entry.request.id) is not entry:
                continue  # aborted during the step
            entry.uncomputed -= tokens
            if entry.uncomputed:
                continue
            self._prefilling.remove(entry)
            request = entry.request
            self._name_full_blocks(entry, request.prompt_tokens + entry.tokens_at_join)
            if entry.tokens_at_join == 0:
                self.counters.prompt_cached += entry.cached_tokens
                self.counters.prompt_computed += request.prompt_tokens - entry.cached_tokens
            if request.output_tokens == 0:
                self._finish(entry, events, now_ms)
                continue
            entry.tokens_at_join += 1
            self.counters.generated += 1
            last = entry.tokens_at_join == request.output_tokens
            if entry.tokens_at_join == 1:
                entry.first_token_ms = now_ms
                events.append(Event(EventKind.FIRST_TOKEN, request.id, now_ms, 1, entry.cached_tokens))
            elif request.every_token and not last:
                events.append(Event(EventKind.TOKEN, request.id, now_ms, entry.tokens_at_join, entry.cached_tokens))
            if last:
                self._finish(entry, events, now_ms)
                continue
            entry.decoding = True
            entry.joined_step = self._steps
            self._decoding += 1
            self._held_tokens += request.prompt_tokens + entry.tokens_at_join
            if request.every_token:
                self._every_token[request.id] = entry
            if request.prompt_tokens + entry.tokens_at_join > entry.blocks * self.parameters.block_size:
                full.append(entry)
            else:
                self._set_due(entry)

    def _set_due(self, entry: _Running) -> None:
        """Its next event: the last token, or the token whose KV has no room in its blocks."""
        room = entry.blocks * self.parameters.block_size - entry.request.prompt_tokens + 1
        tokens = min(entry.request.output_tokens, room)
        entry.due_step = entry.joined_step + tokens - entry.tokens_at_join
        heappush(self._due, (entry.due_step, entry.order, entry))

    def _grow(self, full: list[_Running], events: list[Event], now_ms: float) -> bool:
        """Give each of `full` a block, preempting from the request admitted last. True if any was preempted."""
        preempted = False
        for entry in sorted(full, key=lambda each: each.order):
            if not entry.decoding:
                continue  # preempted for an earlier one
            self._name_full_blocks(entry, entry.request.prompt_tokens + self._generated(entry) - 1)
            while entry.decoding and not self.pool.take_one():
                victim = next(reversed(self._running.values()))
                preempted = True
                self.counters.preemptions += 1
                generated = self._generated(victim)
                events.append(Event(EventKind.PREEMPTED, victim.request.id, now_ms, generated, victim.cached_tokens))
                self._leave(victim)
                self._waiting.appendleft(victim)
            if entry.decoding:
                entry.blocks += 1
                self._set_due(entry)
        return preempted

    def _finish(self, entry: _Running, events: list[Event], now_ms: float) -> None:
        generated = self._generated(entry)
        self._leave(entry)
        self._ids.remove(entry.request.id)
        self._count(entry, generated, now_ms)
        events.append(Event(EventKind.FINISHED, entry.request.id, now_ms, generated, entry.cached_tokens))

    def _count(self, entry: _Running, generated: int, now_ms: float) -> None:
        counters = self.counters
        counters.finished += 1
        counters.finished_computed += entry.request.prompt_tokens - entry.cached_tokens
        counters.finished_generated += generated
        counters.finished_prefill_ms += entry.first_token_ms - entry.admitted_ms
        counters.finished_decode_ms += now_ms - entry.first_token_ms

    def _leave(self, entry: _Running) -> None:
        """Out of the batch: its full blocks stay cached, its tokens stay counted for a recompute."""
        request = entry.request
        if entry.decoding:
            entry.tokens_at_join = self._generated(entry)
            entry.decoding = False
            self._decoding -= 1
            self._held_tokens -= request.prompt_tokens + entry.tokens_at_join
            self._every_token.pop(request.id, None)
            self._name_full_blocks(entry, request.prompt_tokens + entry.tokens_at_join - 1)
        elif entry.uncomputed:
            self._prefilling.remove(entry)
            self._name_full_blocks(entry, request.prompt_tokens + entry.tokens_at_join - entry.uncomputed)
        self.pool.release(request.block_hashes, entry.named_blocks, entry.blocks - entry.named_blocks)
        entry.blocks = entry.named_blocks = entry.uncomputed = 0
        del self._running[request.id]
        self.adapters.end(request.adapter)

    def _name_full_blocks(self, entry: _Running, computed_tokens: int) -> None:
        if not entry.request.block_hashes:
            return
        self._name_blocks(entry, min(computed_tokens // self.parameters.block_size, len(entry.request.block_hashes)))

    def _name_blocks(self, entry: _Running, full: int) -> None:
        if full > entry.named_blocks:
            self.pool.store(entry.request.block_hashes, entry.named_blocks, full)
            entry.named_blocks = full

    def _plan(self, now_ms: float, *, admit: bool) -> None:
        """Choose the batch of the next run of equal steps, which starts now."""
        parameters = self.parameters
        budget = parameters.token_budget - self._decoding
        self._chunks = []
        for entry in self._prefilling:
            budget = self._add_chunk(entry, budget)
        loads_ms, passed_over = 0.0, []  # requests that wait for a slot for their adapter
        while admit and budget > 0 and self._waiting and len(self._running) < parameters.max_num_seqs:
            entry = self._waiting[0]
            if self.adapters.admits(entry.request.adapter):
                if not self._admit(entry, now_ms):
                    break
                loads_ms += self.adapters.begin(entry.request.adapter)
                budget = self._add_chunk(entry, budget)
            else:
                passed_over.append(entry)
            self._waiting.popleft()
        if passed_over:
            self._waiting.extendleft(reversed(passed_over))
        if not self._running:
            self._run.begin(now_ms, 0.0, 0)
            return
        step_ms = parameters.step_ms(
            sum([tokens for _, tokens in self._chunks]) if self._chunks else 0,
            self._decoding,
            attended_tokens=self._tokens_attended() if parameters.prefill_ms_per_1k_before else 0.0,
            held_tokens=self._held_tokens,
        )
        step_ms += loads_ms
        if self._pace is not None:
            step_ms *= self._pace(now_ms)
        one = self._chunks or (self._waiting and not admit)
        self._run.begin(now_ms, step_ms, 1 if one else self._due[0][0] - self._steps)

    def _tokens_attended(self) -> float:
        """The sum, over the prompt tokens computed next, of the tokens of their prompt before each."""
        return sum(
            tokens * (entry.request.prompt_tokens + entry.tokens_at_join - entry.uncomputed + tokens / 2)
            for entry, tokens in self._chunks
        )

    def _add_chunk(self, entry: _Running, budget: int) -> int:
        tokens = min(entry.uncomputed, budget)
        if tokens:
            self._chunks.append((entry, tokens))
        return budget - tokens

    def _admit(self, entry: _Running, now_ms: float) -> bool:
        request, block_size = entry.request, self.parameters.block_size
        tokens = request.prompt_tokens + entry.tokens_at_join
        matched = self.pool.match(request.block_hashes, (tokens - 1) // block_size)
        blocks = -(-tokens // block_size)
        if not self.pool.acquire(request.block_hashes, matched, blocks - matched):
            return False
        self._admissions += 1
        entry.order = self._admissions
        entry.blocks, entry.named_blocks = blocks, matched
        if request.is_fetched and entry.cached_tokens < 0:
            local, matched = matched, min((tokens - 1) // block_size, len(request.block_hashes))
            self._name_blocks(entry, matched)
            self.counters.prompt_external += (matched - local) * block_size
        entry.uncomputed = tokens - matched * block_size
        if entry.cached_tokens < 0:
            entry.admitted_ms = entry.first_token_ms = now_ms
            entry.cached_tokens = matched * block_size
            self.counters.prefix_queries += request.prompt_tokens
            self.counters.prefix_hits += entry.cached_tokens
        self._running[request.id] = entry
        self._prefilling.append(entry)
        return True
