"""One run: a workload under one policy in a world, event by event, with the router's own code and the engine model.

The clock is simulated and all random draws come from the seed, so a run repeats bit for bit. Requests reach
the router where the client is; half a round trip lies between it and the engine, each way. The router's knowledge of
engines is as old as the sidecar's: scraped reports, probed round trips, and first tokens estimated except for a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from math import exp
from random import Random
from typing import Final

from xxhash import xxh3_64_intdigest

from fairlead.api.usage import Usage
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.core.learning import Learner
from fairlead.core.lengths import bucket_of
from fairlead.core.policy import Policy, Refusal
from fairlead.core.reported import EngineReport
from fairlead.core.router import Router
from fairlead.errors import UserError
from fairlead.tools.replay.agenda import Agenda
from fairlead.tools.replay.attempts import Asked, AttemptRecord, RunCounts
from fairlead.tools.replay.engines import Engines
from fairlead.tools.replay.sidecar import Sidecar
from fairlead.tools.replay.workload import Turn, Workload
from fairlead.tools.replay.world import EngineSpec, World
from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_request import EngineRequest, Event, EventKind, RequestRefusedError

HTTP_OK: Final = 200


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
        self.agenda = Agenda(len(workload.conversations))
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
        self._engines = Engines(self.agenda, self._on_event)
        self._engines.add(
            [
                Engine(spec.parameters(workload.block_tokens), world.pace.of_engine(seed, place))
                for place, spec in enumerate(world.endpoints)
            ]
        )
        self._numbers = count()

    @property
    def now_ms(self) -> float:
        return self.agenda.now_ms

    @property
    def engines(self) -> list[Engine]:
        return self._engines.all

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

    def run(self) -> None:
        """Run until every conversation has ended."""
        agenda, observation = self.agenda, self.world.observation
        agenda.at(self.workload.conversations[0].start_ms, self._start, 0)
        apart_ms = 1e3 * observation.scrape_s / len(self.sidecars)
        for number, sidecar in enumerate(self.sidecars):
            agenda.every(observation.scrape_s, number * apart_ms, partial(self._scrape, sidecar))
        agenda.every(observation.learn_s, 1e3 * observation.learn_s, self._learn)
        if self.world.sidecars.load_every_s is not None:
            agenda.every(self.world.sidecars.load_every_s, 0.0, self._share_load)
        self._engines.begin_foreign(self.world, self._seed, self.workload.block_tokens)
        if not all(rtt.constant for rtt in self._rtts):
            agenda.every(observation.rtt_s, 0.0, self._probe)
        agenda.run()
        self.counts.preemptions = sum(engine.counters.preemptions for engine in self.engines)
        self.counts.busy_ms = tuple(self._engines.busy_ms)

    # ---- clients ------------------------------------------------------------------------------------------------

    def _start(self, now_ms: float, number: int) -> None:
        conversations = self.workload.conversations
        if number + 1 < len(conversations):
            self.agenda.at(conversations[number + 1].start_ms, self._start, number + 1)
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
        if turn.model in self.world.adapters:
            facts = facts.called(turn.model, is_adapter=True)
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
        endpoint = self._places[in_flight.address]
        half_rtt_ms = self._rtts[endpoint].at(now_ms) / 2
        asked = Asked(
            number, place, len(attempted) + 1, attempted, asked_ms, sent_ms,
            sidecar, in_flight, endpoint, half_rtt_ms, facts.prefix,
        )  # fmt: skip
        self._launch(now_ms, facts, asked)
        return asked

    def _choose(self, router: Router, facts: RequestFacts, now_s: float) -> InFlight | Refusal:
        return router.admit(facts, None, now_s)

    def _launch(self, now_ms: float, facts: RequestFacts, asked: Asked) -> None:
        asked.in_flight.sent(facts, now_ms / 1e3)
        self._send(now_ms, facts, asked)

    def _send(self, now_ms: float, facts: RequestFacts, asked: Asked) -> None:  # noqa: ARG002
        self.agenda.at(now_ms + asked.half_rtt_ms, self._arrive, asked)

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
            self.agenda.at(now_ms + turns[place + 1].think_ms, self._ask_first, (number, place + 1))
        else:
            self.agenda.open -= 1

    def _ask_first(self, now_ms: float, what: tuple[int, int]) -> None:
        self._ask(now_ms, (*what, (), now_ms))

    def _refused(self, now_ms: float, number: int, place: int, attempt: int, asked_ms: float, sent_ms: float) -> None:
        """No engine can take it: the conversation cannot go on."""
        turns = self.workload.conversations[number].turns
        turn = turns[place]
        self.counts.refused += 1
        self.counts.dropped += len(turns) - place - 1
        self.agenda.open -= 1
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
        if asked.observed:
            usage = Usage(turn.prompt_tokens, asked.cached_tokens, turn.output_tokens)
            seen = in_flight.observation(usage, now_s, streamed=True)
            asked.sidecar.learner.observe(seen, asked.sidecar.router.pool)
        in_flight.ended(now_s, seen)

    # ---- engines ------------------------------------------------------------------------------------------------

    def _arrive(self, now_ms: float, asked: Asked) -> None:
        turn = self._turn(asked)
        self._submit(now_ms, asked, asked.endpoint, turn.prompt_tokens, turn.output_tokens)
        self._open(now_ms, asked)

    def _open(self, now_ms: float, asked: Asked) -> None:
        """As vLLM does, the engine begins its answer's stream before it has computed the prompt."""
        in_flight, budget, now_s = asked.in_flight, asked.sidecar.budget, now_ms / 1e3
        in_flight.served(in_flight.address, HTTP_OK, now_s, in_one_piece=False)
        if in_flight.phase == "served" and budget.open(in_flight.address, now_s):
            budget.ended(self._turn(asked).output_tokens, streamed=True)
            asked.observed = True
            in_flight.watch()

    def _submit(self, now_ms: float, asked: Asked, place: int, prompt_tokens: int, output_tokens: int) -> None:
        name = str(next(self._numbers))
        self._asked[name] = asked
        try:
            adapter, is_fetched = asked.in_flight.request.adapter, asked.pinned is not None
            request = EngineRequest(
                name, prompt_tokens, output_tokens, asked.prefix, adapter=adapter, is_fetched=is_fetched
            )
            self._engines.submit(place, request, now_ms)
        except RequestRefusedError:
            del self._asked[name]
            asked.in_flight.withdraw(now_ms / 1e3)
            self._refused(now_ms, asked.conversation, asked.turn, asked.attempt, asked.asked_ms, asked.sent_ms)

    def _turn(self, asked: Asked) -> Turn:
        return self.workload.conversations[asked.conversation].turns[asked.turn]

    def _on_event(self, now_ms: float, event: Event) -> None:
        if event.request_id not in self._asked:
            return  # somebody else's
        if event.kind is EventKind.FINISHED:
            self._finished(now_ms, self._asked.pop(event.request_id))
        elif event.kind is EventKind.FIRST_TOKEN:
            self._first_token(now_ms, self._asked[event.request_id], event.cached_tokens)

    def _first_token(self, now_ms: float, asked: Asked, cached_tokens: int) -> None:
        if asked.handed_over:
            return
        asked.first_token_ms = now_ms
        asked.cached_tokens = cached_tokens
        if asked.observed:
            self.agenda.at(now_ms + asked.half_rtt_ms, self._first_token_seen, asked)

    def _finished(self, now_ms: float, asked: Asked) -> None:
        """The engine has finished, and the answer travels to the client."""
        self.agenda.at(now_ms + asked.half_rtt_ms, self._answered, asked)

    def _first_token_seen(self, now_ms: float, asked: Asked) -> None:
        asked.in_flight.first_token(now_ms / 1e3)

    # ---- off the request path -------------------------------------------------------------------------------------

    def _scrape(self, sidecar: Sidecar, now_ms: float) -> None:
        sidecar.scrape(self.engines, self._report_of, now_ms)

    def _report_of(self, engine: Engine, spec: EngineSpec, now_ms: float) -> EngineReport:
        return EngineReport(
            running_requests=engine.running,
            waiting_requests=engine.waiting,
            kv_usage=engine.kv_usage,
            kv_capacity_tokens=spec.kv_tokens,
            adapter_slots=engine.parameters.adapter_slots if self.world.adapters else None,
            running_adapters=engine.adapters_in_use,
            waiting_adapters=engine.adapters_in_use,
            read_s=now_ms / 1e3,
            changed_s=now_ms / 1e3,
            stale=False,
        )

    def _learn(self, _: float) -> None:
        for sidecar in self.sidecars:
            sidecar.learn()

    def _share_load(self, now_ms: float) -> None:
        sent = [[endpoint.own for endpoint in sidecar.endpoints] for sidecar in self.sidecars]
        for number, sidecar in enumerate(self.sidecars):
            sidecar.peers_reported(sent, number, now_ms / 1e3)

    def _probe(self, now_ms: float) -> None:
        for sidecar in self.sidecars:
            sidecar.probe(self._rtts, now_ms)
