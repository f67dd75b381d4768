"""One run: a workload under one policy in a world, event by event, with the router's own code and the engine model.

The clock is simulated and all random draws come from the seed, so a run repeats bit for bit. Requests reach
the router where the client is; half a round trip lies between it and the engine, each way. The router's knowledge of
engines is as old as the sidecar's: scraped reports, probed round trips, and first tokens estimated except for a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import exp
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.api.usage import Usage
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.core.learning import Learner
from fairlead.core.lengths import bucket_of
from fairlead.core.policy import Policy, Refusal
from fairlead.core.reported import EngineReport, aged, following
from fairlead.core.router import Router
from fairlead.errors import UserError
from fairlead.tools.replay.sidecar import Sidecar
from fairlead.tools.replay.workload import Turn, Workload
from fairlead.tools.replay.world import EngineSpec, World
from fairlead.tools.simulate.engine import Engine, EngineRequest, EventKind, RequestRefusedError

HTTP_OK: Final = 200
_STALE_S: Final = 1.0  # after which a report that could not be renewed is stale
_STEP, _OTHER = 0, 1  # an engine's steps up to a time come before other events at that time


class AttemptRecord(NamedTuple):
    """One attempt, ended: a row of the results. Times are simulated ms; -1 stands for no endpoint and no time."""

    conversation: int
    turn: int
    attempt: int  # from 1
    session: int  # a digest, 0 for none
    endpoint: int  # its index in the world
    model: str
    why: str  # reason of the decision; "refused" if no engine could take it
    prompt_tokens: int
    output_tokens: int
    expected_tokens: int  # prompt tokens that the router expected to be cached
    cached_tokens: int  # prompt tokens that were cached
    asked_ms: float  # when the first attempt was sent
    sent_ms: float
    first_token_ms: float  # from sent_ms
    total_ms: float  # from sent_ms
    right: bool


class RunCounts(msgspec.Struct):
    """Counts of a run that its rows do not show."""

    sent: int = 0
    refused: int = 0  # by every engine, or too long for the chosen one
    dropped: int = 0  # later turns of a conversation that a refusal ended
    preemptions: int = 0
    moves: int = 0  # of sessions off hot endpoints
    moves_back: int = 0  # back to the session's previous endpoint
    busy_ms: tuple[float, ...] = ()  # for each engine: time with a step under way


class Asked(msgspec.Struct, eq=False):
    """An attempt under way."""

    conversation: int
    turn: int
    attempt: int
    attempted: tuple[str, ...]
    asked_ms: float
    sent_ms: float
    sidecar: Sidecar
    in_flight: InFlight
    endpoint: int
    half_rtt_ms: float
    prefix: tuple[int, ...]
    observed: bool = False
    handed_over: bool = False  # to an engine that only decodes, after its first token
    first_token_ms: float = 0.0
    cached_tokens: int = 0


class Simulation:
    """`run` passes every attempt to `sink` as it ends. Raises UserError if the policy fails."""

    def __init__(
        self,
        world: World,
        workload: Workload,
        policy: Policy,
        *,
        seed: int,
        sink: Callable[[AttemptRecord], None],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.world = world
        self.workload = workload
        self.counts = RunCounts()
        self.now_ms = 0.0
        self.engines: list[Engine] = []
        self.sidecars = [
            Sidecar(world, policy, workload.block_tokens, f"{seed} {number}" if number else str(seed))
            for number in range(world.sidecars.count)
        ]
        self._seed = seed
        self._sink = sink
        self._progress = progress
        self._places = {spec.address: place for place, spec in enumerate(world.endpoints)}
        self._rtts = [world.rtt(spec.region) for spec in world.endpoints]
        self._asked: dict[str, Asked] = {}
        self._due: list[float | None] = []
        self._busy_since: list[float | None] = []
        self._busy_ms: list[float] = []
        self._add_engines(
            [
                Engine(spec.parameters(workload.block_tokens), world.pace.of_engine(seed, place))
                for place, spec in enumerate(world.endpoints)
            ]
        )
        self._heap: list[tuple[float, int, int, Callable[[float, Any], None], Any]] = []
        self._numbers = count()
        self._open = len(workload.conversations)  # conversations that have not ended

    @property
    def router(self) -> Router:
        """Of the first sidecar, which most worlds have alone."""
        return self.sidecars[0].router

    @property
    def endpoints(self) -> list[Endpoint]:
        """As the first sidecar knows them."""
        return self.sidecars[0].endpoints

    @property
    def learner(self) -> Learner:
        """Of the first sidecar."""
        return self.sidecars[0].learner

    def _add_engines(self, engines: Sequence[Engine]) -> None:
        self.engines += engines
        self._due += [None] * len(engines)
        self._busy_since += [None] * len(engines)
        self._busy_ms += [0.0] * len(engines)

    def run(self) -> None:
        """Run until every conversation has ended."""
        heap = self._heap
        self._at(self.workload.conversations[0].start_ms, self._start, 0)
        every_ms = 1e3 * self.world.observation.scrape_s / len(self.sidecars)
        for number, sidecar in enumerate(self.sidecars):
            self._at(number * every_ms, self._scrape, sidecar)
        self._at(1e3 * self.world.observation.learn_s, self._tend, None)
        if self.world.sidecars.load_every_s is not None:
            self._at(0.0, self._share_load, self.world.sidecars.load_every_s)
        for place in range(len(self.world.endpoints)):
            arrivals = self.world.foreign.arrivals(self._seed, place, self.workload.block_tokens)
            self._await_foreign((place, arrivals))
        if not all(rtt.constant for rtt in self._rtts):
            self._at(0.0, self._probe, None)
        while heap:
            now_ms, _, _, handle, argument = heappop(heap)
            self.now_ms = now_ms
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
        number, place, attempted, _ = what
        conversation = self.workload.conversations[number]
        turn = conversation.turns[place]
        error = self._token_error(number)
        facts = RequestFacts(
            model=turn.model or self.world.asked,
            tokens=max(1, round(turn.prompt_tokens * error)),
            max_output_tokens=None,  # traces do not say what clients allowed
            language=turn.language,
            bucket=bucket_of(turn.prompt_tokens),
            attempted=attempted,
            session=conversation.session,
            prefix=turn.blocks(),
            block_tokens=self.workload.block_tokens * error,
        )
        self.counts.sent += 1
        self._admit(now_ms, facts, what)

    def _admit(self, now_ms: float, facts: RequestFacts, what: tuple[int, int, tuple[str, ...], float]) -> None:
        """The request is at the router."""
        self._begin(now_ms, facts, what, now_ms)

    def _begin(
        self, now_ms: float, facts: RequestFacts, what: tuple[int, int, tuple[str, ...], float], sent_ms: float
    ) -> Asked | None:
        """An endpoint is chosen for a request that its client sent at `sent_ms`; None: it was refused."""
        number, place, attempted, asked_ms = what
        sidecar = self.sidecars[(number + place) % len(self.sidecars)]
        router = sidecar.router
        in_flight = self._choose(router, facts, now_ms / 1e3)
        if router.policy_failures:
            raise UserError(f"the policy {type(router.policy).__name__} failed:\n{router.last_policy_failure}")
        if isinstance(in_flight, Refusal):
            if in_flight.reason == "unknown_model":
                raise UserError(f'the trace asks for "{facts.model}", which no engine of this world serves')
            self._refused(now_ms, number, place, len(attempted) + 1, asked_ms, sent_ms)
            return None
        in_flight.sent(facts, now_ms / 1e3)
        endpoint = self._places[in_flight.address]
        half_rtt_ms = self._rtts[endpoint].at(now_ms) / 2
        asked = Asked(
            number, place, len(attempted) + 1, attempted, asked_ms, sent_ms,
            sidecar, in_flight, endpoint, half_rtt_ms, facts.prefix,
        )  # fmt: skip
        self._send(now_ms, facts, asked)
        return asked

    def _choose(self, router: Router, facts: RequestFacts, now_s: float) -> InFlight | Refusal:
        return router.admit(facts, None, now_s)

    def _send(self, now_ms: float, facts: RequestFacts, asked: Asked) -> None:  # noqa: ARG002
        self._at(now_ms + asked.half_rtt_ms, self._arrive, asked)

    def _answered(self, now_ms: float, asked: Asked) -> None:
        """The client has the whole answer: it asks again if it is wrong, else goes on with its conversation."""
        turn, decision = self._turn(asked), asked.in_flight.decision
        total_ms = now_ms - asked.sent_ms
        first_token_ms = asked.first_token_ms + asked.half_rtt_ms - asked.sent_ms
        self._end(now_ms / 1e3, asked, turn)
        right = self._is_right(asked, turn)
        self._sink(
            AttemptRecord(
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
            AttemptRecord(
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

    def _token_error(self, number: int) -> float:
        """Estimated over true tokens of a conversation's prompts, the same for all policies."""
        error = self.world.observation.token_error
        return exp(error * Random(f"tokens {self._seed} {number}").gauss(0.0, 1.0)) if error else 1.0

    def _is_right(self, asked: Asked, turn: Turn) -> bool:
        """Drawn from what is asked and not when, so that all policies get the same draws."""
        retries = self.world.retries
        truth = retries.right.get(asked.in_flight.decision.model)
        if truth is None:
            return True
        attempt = 0 if retries.deterministic else asked.attempt
        what = f"{self._seed} {asked.conversation} {asked.turn} {asked.in_flight.decision.model} {attempt}".encode()
        drawn = xxh3_64_intdigest(what) / 2.0**64
        return drawn < truth.success_probability(turn.language, bucket_of(turn.prompt_tokens), turn.prompt_tokens)

    def _end(self, now_s: float, asked: Asked, turn: Turn) -> None:
        """What the sidecar does at an answer's end, including learning from an answer observed in full."""
        in_flight, seen = asked.in_flight, None
        in_flight.served(in_flight.address, HTTP_OK, now_s, in_one_piece=False)
        if asked.observed:
            usage = Usage(turn.prompt_tokens, asked.cached_tokens, turn.output_tokens)
            seen = in_flight.observation(usage, now_s, streamed=True)
            asked.sidecar.learner.observe(seen, asked.sidecar.router.pool)
        in_flight.ended(now_s, seen)

    # ---- engines ------------------------------------------------------------------------------------------------

    def _arrive(self, now_ms: float, asked: Asked) -> None:
        turn = self._turn(asked)
        self._submit(now_ms, asked, asked.endpoint, turn.prompt_tokens, turn.output_tokens)

    def _submit(self, now_ms: float, asked: Asked, place: int, prompt_tokens: int, output_tokens: int) -> None:
        name = str(next(self._numbers))
        try:
            self.engines[place].submit(EngineRequest(name, prompt_tokens, output_tokens, asked.prefix), now_ms)
        except RequestRefusedError:
            asked.in_flight.withdraw(now_ms / 1e3)
            self._refused(now_ms, asked.conversation, asked.turn, asked.attempt, asked.asked_ms, asked.sent_ms)
            return
        self._asked[name] = asked
        self._got(place, now_ms)

    def _got(self, place: int, now_ms: float) -> None:
        """An engine has another request."""
        if self._busy_since[place] is None:
            self._busy_since[place] = now_ms
        self._plan_step(place, now_ms)

    def _await_foreign(self, what: tuple[int, Iterator[tuple[float, EngineRequest]]]) -> None:
        place, arrivals = what
        arrival = next(arrivals, None)
        if arrival is not None:
            self._at(arrival[0], self._foreign, (place, arrivals, arrival[1]))

    def _foreign(self, now_ms: float, what: tuple[int, Iterator[tuple[float, EngineRequest]], EngineRequest]) -> None:
        """A request of somebody else reaches an engine; nobody here waits for its answer."""
        place, arrivals, request = what
        if not self._open:
            return
        try:
            self.engines[place].submit(request, now_ms)
        except RequestRefusedError as error:
            raise UserError(f"foreign requests do not fit the engines of this world: {error}") from None
        self._got(place, now_ms)
        self._await_foreign((place, arrivals))

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
            if event.request_id not in self._asked:
                continue  # somebody else's
            if event.kind is EventKind.FINISHED:
                self._finished(now_ms, self._asked.pop(event.request_id))
            elif event.kind is EventKind.FIRST_TOKEN:
                asked = self._asked[event.request_id]
                if asked.handed_over:
                    continue
                asked.first_token_ms = now_ms
                asked.cached_tokens = event.cached_tokens
                budget = asked.sidecar.budget
                if budget.open(asked.in_flight.address, now_ms / 1e3):
                    budget.ended(self._turn(asked).output_tokens, streamed=True)
                    asked.observed = True
                    self._at(now_ms + asked.half_rtt_ms, self._first_token_seen, asked)
        self._plan_step(place, now_ms)

    def _finished(self, now_ms: float, asked: Asked) -> None:
        """The engine has finished, and the answer travels to the client."""
        self._at(now_ms + asked.half_rtt_ms, self._answered, asked)

    def _first_token_seen(self, now_ms: float, asked: Asked) -> None:
        asked.in_flight.first_token(now_ms / 1e3)

    # ---- off the request path -------------------------------------------------------------------------------------

    def _scrape(self, now_ms: float, sidecar: Sidecar) -> None:
        lost, now_s = self.world.observation.lost_reports, now_ms / 1e3
        for endpoint, engine, spec in zip(sidecar.endpoints, self.engines, self.world.endpoints, strict=False):
            if lost and sidecar.lost.random() < lost:
                endpoint.reported(aged(endpoint.report, now_s, _STALE_S))
                continue
            report = self._report_of(engine, spec, now_ms)
            endpoint.reported(following(endpoint.report, report, _STALE_S))
        if self._open:
            self._at(now_ms + 1e3 * self.world.observation.scrape_s, self._scrape, sidecar)

    def _report_of(self, engine: Engine, spec: EngineSpec, now_ms: float) -> EngineReport:
        return EngineReport(
            running_requests=engine.running,
            waiting_requests=engine.waiting,
            kv_usage=engine.kv_usage,
            kv_capacity_tokens=spec.kv_tokens,
            read_s=now_ms / 1e3,
            changed_s=now_ms / 1e3,
            stale=False,
        )

    def _tend(self, now_ms: float, _: None) -> None:
        for sidecar in self.sidecars:
            sidecar.learner.settle(sidecar.router.pool)
        if self._open:
            self._at(now_ms + 1e3 * self.world.observation.learn_s, self._tend, None)

    def _share_load(self, now_ms: float, every_s: float) -> None:
        sent = [[endpoint.own for endpoint in sidecar.endpoints] for sidecar in self.sidecars]
        for number, sidecar in enumerate(self.sidecars):
            sidecar.peers_reported(sent, number)
        if self._open:
            self._at(now_ms + 1e3 * every_s, self._share_load, every_s)

    def _probe(self, now_ms: float, _: None) -> None:
        alpha = self.world.observation.rtt_alpha
        for sidecar in self.sidecars:
            for endpoint, rtt in zip(sidecar.endpoints, self._rtts, strict=True):
                endpoint.rtt_ms += alpha * (rtt.at(now_ms) - endpoint.rtt_ms)
        if self._open:
            self._at(now_ms + 1e3 * self.world.observation.rtt_s, self._probe, None)
