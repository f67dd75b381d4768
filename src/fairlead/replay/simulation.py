"""One run: a workload under one policy in a world, event by event, with the router's own code and the engine model.

The clock is the simulated one, and whatever is drawn comes from the seed, so a run repeats bit for bit. Requests reach
the router where the client is; half a round trip lies between it and the engine, each way. The router hears of engines
as late as the sidecar does: scraped reports, probed round trips, and first tokens by estimate but for a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.core.budget import MessageBudget
from fairlead.core.facts import RequestFacts
from fairlead.core.feedback import Outcome
from fairlead.core.learning import Learner, Observation
from fairlead.core.lengths import bucket_of
from fairlead.core.pool import Pool
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.ranking import Policy
from fairlead.core.reported import EngineReport, following
from fairlead.core.router import Decision, Refusal, Router
from fairlead.errors import UserError
from fairlead.replay.workload import Turn, Workload
from fairlead.replay.world import World
from fairlead.simulate.engine import Engine, EngineRequest, EventKind, RequestRefusedError

HTTP_OK: Final = 200
_STEP, _OTHER = 0, 1  # an engine's steps up to a time are made before anything reaches it at that time


class Answer(NamedTuple):
    """One attempt, ended: a row of the results. Times are simulated ms; -1 stands for no endpoint and no time."""

    conversation: int
    turn: int
    attempt: int  # from 1
    session: int  # a digest, 0 for none
    endpoint: int  # its place in the world
    model: str
    why: str  # of the decision; "refused" where no engine could take it
    prompt_tokens: int
    output_tokens: int
    expected_tokens: int  # of the prompt, that the router took for cached
    cached_tokens: int  # that were
    asked_ms: float  # when the first attempt was sent
    sent_ms: float
    first_token_ms: float  # from sent_ms
    total_ms: float  # from sent_ms
    right: bool


class Counts(msgspec.Struct):
    """What is known only while a run goes on."""

    sent: int = 0
    refused: int = 0  # by every engine, or too long for the chosen one
    dropped: int = 0  # later turns of a conversation that a refusal ended
    preemptions: int = 0
    moves: int = 0  # of sessions off hot hosts
    moves_back: int = 0  # to where the session had come from
    busy_ms: tuple[float, ...] = ()  # of each engine: with a step under way


class Asked(msgspec.Struct, eq=False):
    """An attempt under way."""

    conversation: int
    turn: int
    attempt: int
    attempted: tuple[str, ...]
    asked_ms: float
    sent_ms: float
    decision: Decision
    endpoint: int
    half_rtt_ms: float
    prefix: tuple[int, ...]
    observed: bool = False
    handed_over: bool = False  # to an engine that only decodes, after its first token
    first_token_ms: float = 0.0
    cached_tokens: int = 0
    beside_requests: float = 0.0  # and prefilled tokens: at its first token, then until its end
    prefilled_tokens: int = 0


class Simulation:
    """`run` hands every attempt to `sink` as it ends. Raises UserError where the policy fails."""

    def __init__(
        self,
        world: World,
        workload: Workload,
        policy: Policy,
        *,
        seed: int,
        sink: Callable[[Answer], None],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.world = world
        self.workload = workload
        self.counts = Counts()
        self.engines: list[Engine] = []
        self.endpoints = world.router_endpoints()
        index = PrefixIndex()
        self.router = Router(
            Pool(self.endpoints, world.routes), policy, fallbacks=0, rng=Random(f"policy {seed}"), index=index
        )
        for spec in world.endpoints:
            index.set_capacity(spec.address, spec.kv_tokens // workload.block_tokens)
        self.learner = Learner()
        self._seed = seed
        self._sink = sink
        self._progress = progress
        self._places = {spec.address: place for place, spec in enumerate(world.endpoints)}
        self._rtts = [world.rtt(spec.region) for spec in world.endpoints]
        self._budget = MessageBudget(world.observation.messages_per_second)
        self._asked: dict[str, Asked] = {}
        self._due: list[float | None] = []
        self._busy_since: list[float | None] = []
        self._busy_ms: list[float] = []
        self._add_engines([Engine(spec.parameters(workload.block_tokens)) for spec in world.endpoints])
        self._heap: list[tuple[float, int, int, Callable[[float, Any], None], Any]] = []
        self._numbers = count()
        self._open = len(workload.conversations)  # conversations that have not ended

    def _add_engines(self, engines: Sequence[Engine]) -> None:
        self.engines += engines
        self._due += [None] * len(engines)
        self._busy_since += [None] * len(engines)
        self._busy_ms += [0.0] * len(engines)

    def run(self) -> None:
        """Until every conversation has ended."""
        heap = self._heap
        self._at(self.workload.conversations[0].start_ms, self._start, 0)
        self._at(0.0, self._scrape, None)
        if not all(rtt.constant for rtt in self._rtts):
            self._at(0.0, self._probe, None)
        while heap:
            now_ms, _, _, handle, argument = heappop(heap)
            handle(now_ms, argument)
        self.counts.preemptions = sum(engine.counters.preemptions for engine in self.engines)
        self.counts.busy_ms = tuple(self._busy_ms)

    def _at(self, time_ms: float, handle: Callable[[float, Any], None], argument: Any) -> None:
        heappush(self._heap, (time_ms, _OTHER, next(self._numbers), handle, argument))

    # ---- clients ------------------------------------------------------------------------------------------------

    def _start(self, now_ms: float, number: int) -> None:
        conversations = self.workload.conversations
        if number + 1 < len(conversations):
            self._at(conversations[number + 1].start_ms, self._start, number + 1)
        self._ask(now_ms, (number, 0, (), now_ms))

    def _ask(self, now_ms: float, what: tuple[int, int, tuple[str, ...], float]) -> None:
        """Send an attempt: (conversation, turn, models that were wrong, when the first attempt was sent)."""
        number, place, attempted, asked_ms = what
        conversation = self.workload.conversations[number]
        turn = conversation.turns[place]
        prefix = turn.blocks()
        facts = RequestFacts(
            model=turn.model or self.world.asked,
            tokens=turn.prompt_tokens,
            max_output_tokens=None,  # traces do not say what clients allowed
            language=turn.language,
            bucket=bucket_of(turn.prompt_tokens),
            attempted=attempted,
            session=conversation.session,
            prefix=prefix,
            block_tokens=float(self.workload.block_tokens),
        )
        router = self.router
        self.counts.sent += 1
        decision = router.decide(facts, None, now_ms / 1e3)
        if router.policy_failures:
            raise UserError(f"the policy {type(router.policy).__name__} failed:\n{router.last_policy_failure}")
        if isinstance(decision, Refusal):
            if decision.reason == "unknown_model":
                raise UserError(f'the trace asks for "{facts.model}", which no engine of this world serves')
            self._refused(now_ms, number, place, len(attempted) + 1, asked_ms, now_ms)
            return
        address = decision.addresses[0]
        router.commit(facts, address, now_ms / 1e3, binds=not decision.strayed)
        endpoint = self._places[address]
        half_rtt_ms = self._rtts[endpoint].at(now_ms) / 2
        asked = Asked(
            number, place, len(attempted) + 1, attempted, asked_ms, now_ms, decision, endpoint, half_rtt_ms, prefix
        )
        self._send(now_ms, facts, asked)

    def _send(self, now_ms: float, facts: RequestFacts, asked: Asked) -> None:  # noqa: ARG002
        self._at(now_ms + asked.half_rtt_ms, self._arrive, asked)

    def _answered(self, now_ms: float, asked: Asked) -> None:
        """The client has the whole answer: it asks again if it is wrong, else goes on with its conversation."""
        turn, decision = self._turn(asked), asked.decision
        total_ms = now_ms - asked.sent_ms
        first_token_ms = asked.first_token_ms + asked.half_rtt_ms - asked.sent_ms
        ticket = decision.ticket
        asked.beside_requests = (asked.beside_requests + ticket.beside_requests()) / 2
        asked.prefilled_tokens = ticket.prefilled_there() - asked.prefilled_tokens
        ticket.release()
        self._learn(now_ms, asked, turn, first_token_ms)
        right = self._is_right(asked, turn)
        self._sink(
            Answer(
                asked.conversation,
                asked.turn,
                asked.attempt,
                self._session_of(asked.conversation),
                asked.endpoint,
                decision.model,
                decision.why,
                turn.prompt_tokens,
                turn.output_tokens,
                decision.cached_tokens,
                asked.cached_tokens,
                asked.asked_ms,
                asked.sent_ms,
                first_token_ms,
                total_ms,
                right,
            )
        )
        if not right and asked.attempt < self.world.retries.most_attempts:
            self._ask(now_ms, (asked.conversation, asked.turn, (*asked.attempted, decision.model), asked.asked_ms))
            return
        self._go_on(now_ms, asked.conversation, asked.turn)

    def _go_on(self, now_ms: float, number: int, place: int) -> None:
        turns = self.workload.conversations[number].turns
        if self._progress is not None:
            self._progress(1)
        if place + 1 < len(turns):
            self._at(now_ms + turns[place + 1].think_ms, self._ask_first, (number, place + 1))
        else:
            self._open -= 1

    def _ask_first(self, now_ms: float, what: tuple[int, int]) -> None:
        self._ask(now_ms, (*what, (), now_ms))

    def _refused(self, now_ms: float, number: int, place: int, attempt: int, asked_ms: float, sent_ms: float) -> None:
        """No engine can take it: the conversation cannot go on."""
        turns = self.workload.conversations[number].turns
        turn = turns[place]
        self.counts.refused += 1
        self.counts.dropped += len(turns) - place - 1
        self._open -= 1
        if self._progress is not None:
            self._progress(len(turns) - place)
        self._sink(
            Answer(
                number,
                place,
                attempt,
                self._session_of(number),
                -1,
                turn.model or self.world.asked,
                "refused",
                turn.prompt_tokens,
                turn.output_tokens,
                0,
                0,
                asked_ms,
                sent_ms,
                -1.0,
                now_ms - sent_ms,
                False,
            )
        )

    def _session_of(self, number: int) -> int:
        session = self.workload.conversations[number].session
        return int.from_bytes(session[:6]) if session is not None else 0

    def _is_right(self, asked: Asked, turn: Turn) -> bool:
        """Drawn by what is asked, not by when: policies are compared on the same luck."""
        retries = self.world.retries
        truth = retries.right.get(asked.decision.model)
        if truth is None:
            return True
        attempt = 0 if retries.deterministic else asked.attempt
        what = f"{self._seed} {asked.conversation} {asked.turn} {asked.decision.model} {attempt}".encode()
        drawn = xxh3_64_intdigest(what) / 2.0**64
        return drawn < truth.success_probability(turn.language, bucket_of(turn.prompt_tokens), turn.prompt_tokens)

    def _learn(self, now_ms: float, asked: Asked, turn: Turn, first_token_ms: float) -> None:
        """What the sidecar learns from an answer's end, and from one that it observed in full."""
        observed, decision, total_ms = asked.observed, asked.decision, now_ms - asked.sent_ms
        outcome = Outcome(HTTP_OK, total_ms)
        if observed:
            outcome = Outcome(
                HTTP_OK, total_ms, first_token_ms, turn.prompt_tokens, asked.cached_tokens, turn.output_tokens
            )
        self.router.feedback(decision, outcome, now_ms / 1e3)
        if observed:
            seen = Observation(
                address=decision.addresses[0],
                model=decision.model,
                language=turn.language,
                estimated_tokens=turn.prompt_tokens,
                ratio=1.0,
                queued_tokens=decision.queued_tokens,
                rtt_ms=decision.rtt_ms,
                first_token_ms=first_token_ms,
                decode_ms=total_ms - first_token_ms,
                beside_requests=asked.beside_requests,
                prefilled_tokens=asked.prefilled_tokens,
                prompt_tokens=turn.prompt_tokens,
                cached_tokens=asked.cached_tokens,
                completion_tokens=turn.output_tokens,
            )
            self.learner.observe(seen, self.router.pool)

    # ---- engines ------------------------------------------------------------------------------------------------

    def _arrive(self, now_ms: float, asked: Asked) -> None:
        turn = self._turn(asked)
        self._submit(now_ms, asked, asked.endpoint, turn.prompt_tokens, turn.output_tokens)

    def _submit(self, now_ms: float, asked: Asked, place: int, prompt_tokens: int, output_tokens: int) -> None:
        name = str(next(self._numbers))
        try:
            self.engines[place].submit(EngineRequest(name, prompt_tokens, output_tokens, asked.prefix), now_ms)
        except RequestRefusedError:
            asked.decision.ticket.release()
            self._refused(now_ms, asked.conversation, asked.turn, asked.attempt, asked.asked_ms, asked.sent_ms)
            return
        self._asked[name] = asked
        if self._busy_since[place] is None:
            self._busy_since[place] = now_ms
        self._plan_step(place, now_ms)

    def _turn(self, asked: Asked) -> Turn:
        return self.workload.conversations[asked.conversation].turns[asked.turn]

    def _plan_step(self, place: int, now_ms: float) -> None:
        due_ms = self.engines[place].next_step_ms()
        if due_ms is None:
            self._due[place] = None
            self._busy_ms[place] += now_ms - (self._busy_since[place] or 0.0)
            self._busy_since[place] = None
        elif due_ms != self._due[place]:
            self._due[place] = due_ms
            heappush(self._heap, (due_ms, _STEP, next(self._numbers), self._step, place))

    def _step(self, now_ms: float, place: int) -> None:
        if now_ms != self._due[place]:
            return  # something arrived meanwhile, and the step ends at another time
        self._due[place] = None
        for event in self.engines[place].step(now_ms):
            if event.kind is EventKind.FINISHED:
                self._finished(now_ms, self._asked.pop(event.request_id))
            elif event.kind is EventKind.FIRST_TOKEN:
                asked = self._asked[event.request_id]
                if asked.handed_over:
                    continue
                asked.first_token_ms = now_ms
                asked.cached_tokens = event.cached_tokens
                if self._budget.open(now_ms / 1e3):
                    self._budget.spend(self._turn(asked).output_tokens)
                    asked.observed = True
                    self._at(now_ms + asked.half_rtt_ms, self._first_token_seen, asked)
        self._plan_step(place, now_ms)

    def _finished(self, now_ms: float, asked: Asked) -> None:
        """An engine is done with it, and the answer travels to the client."""
        self._at(now_ms + asked.half_rtt_ms, self._answered, asked)

    def _first_token_seen(self, now_ms: float, asked: Asked) -> None:  # noqa: ARG002
        ticket = asked.decision.ticket
        ticket.prefilled()
        asked.beside_requests, asked.prefilled_tokens = float(ticket.beside_requests()), ticket.prefilled_there()

    # ---- beside the request path ----------------------------------------------------------------------------------

    def _scrape(self, now_ms: float, _: None) -> None:
        for endpoint, engine, spec in zip(self.endpoints, self.engines, self.world.endpoints, strict=False):
            report = EngineReport(
                running_requests=engine.running,
                waiting_requests=engine.waiting,
                kv_usage=engine.kv_usage,
                kv_capacity_tokens=spec.kv_tokens,
                read_s=now_ms / 1e3,
                changed_s=now_ms / 1e3,
                stale=False,
            )
            endpoint.told(following(endpoint.reported, report, 1.0))
        if self._open:
            self._at(now_ms + 1e3 * self.world.observation.scrape_s, self._scrape, None)

    def _probe(self, now_ms: float, _: None) -> None:
        alpha = self.world.observation.rtt_alpha
        for endpoint, rtt in zip(self.endpoints, self._rtts, strict=True):
            endpoint.rtt_ms += alpha * (rtt.at(now_ms) - endpoint.rtt_ms)
        if self._open:
            self._at(now_ms + 1e3 * self.world.observation.rtt_s, self._probe, None)
