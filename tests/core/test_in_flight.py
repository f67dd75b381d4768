"""One request's life: whatever happens in whatever order, what it took is given back once, and only once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.api.usage import Usage
from fairlead.core.endpoint import Endpoint, EndpointSpec
from fairlead.core.facts import RequestFacts, session_key, unread_facts
from fairlead.core.in_flight import ABORTED_CODE, InFlight
from fairlead.core.load import Load
from fairlead.core.policy import Decision, Outcome
from fairlead.core.pool import Pool
from fairlead.core.reported import UNKNOWN, EngineIdentity, EngineReport
from fairlead.core.streak import REQUEST_FAILURES_TO_EJECT
from tests.core.world import World, make_endpoint, request

PROMPT = (1, 2, 3, 4)


class Recorded:
    """A tuner that keeps what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def observe(self, decision: Decision, outcome: Outcome, decided: int, now_s: float) -> None:  # noqa: ARG002
        self.outcomes.append(outcome)


def world_of_two(policy: str = "fairlead") -> tuple[World, Recorded]:
    world, tuner = World(policy), Recorded()
    world.endpoint("a:1")
    world.endpoint("b:1")
    world.router.use(world.router.policy, tuner)
    return world, tuner


def asked(session: str | None = "s") -> RequestFacts:
    return msgspec.structs.replace(request(tokens=4 * 128, session=session), prefix=PROMPT, block_tokens=128.0)


def sent(world: World, session: str | None = "s", now_s: float = 1.0) -> InFlight:
    in_flight = world.router.admit(asked(session), now_s=now_s)
    assert isinstance(in_flight, InFlight)
    in_flight.sent(asked(session), now_s)
    return in_flight


def sent_new(world: World, number: int) -> InFlight:
    """A prompt that nobody sent before."""
    facts = msgspec.structs.replace(asked(None), prefix=tuple(10 * number + i for i in PROMPT))
    in_flight = world.router.admit(facts, now_s=1.0)
    assert isinstance(in_flight, InFlight)
    in_flight.sent(facts, 1.0)
    return in_flight


def idle(world: World) -> bool:
    return all(e.own == e.load == Load() for e in world.router.pool.endpoints)


@pytest.mark.parametrize(("code", "doubted"), [(404, True), (400, False), (200, False), (500, False)])
def test_an_engine_that_answers_404_may_not_serve_what_it_listed(code: int, doubted: bool) -> None:
    world, _ = world_of_two()
    in_flight = sent(world)
    in_flight.served(in_flight.address, code, 2.0, in_one_piece=True)
    assert [e.models_are_doubted for e in world.router.pool.endpoints if e.address == in_flight.address] == [doubted]
    in_flight.ended(3.0)


def test_what_is_sent_counts_as_load_as_cached_and_as_the_sessions_binding_until_it_ends() -> None:
    world, tuner = world_of_two()
    in_flight = sent(world)
    endpoint = world.router.pool.by_address[in_flight.address]
    assert endpoint.load == Load(1, 512, 512, 0, 512**2 // 2)
    assert world.router.index.match(PROMPT, 1.0) == {in_flight.address: 4}
    assert world.router.sessions.address_of(session_key(b"s")) == in_flight.address
    in_flight.served(in_flight.address, 200, 2.0, in_one_piece=False)
    in_flight.first_token(2.5)
    assert endpoint.load == Load(1, 512, 0, 1)
    in_flight.ended(3.0)
    assert idle(world)
    assert tuner.outcomes == [Outcome(200, 2000.0)]


def test_it_ends_once() -> None:
    world, tuner = world_of_two()
    in_flight = sent(world)
    assert in_flight.ended(2.0) is not None
    assert in_flight.ended(3.0) is None
    in_flight.withdraw(4.0)
    assert len(tuner.outcomes) == 1
    assert idle(world)


def test_withdrawn_it_leaves_nothing_behind_and_blames_nobody() -> None:
    world, tuner = world_of_two()
    first = sent(world, "before")
    first.ended(1.0)
    held = dict(world.router.index.match(PROMPT, 2.0))
    in_flight = world.router.admit(msgspec.structs.replace(asked(), prefix=(7, 8)), now_s=2.0)
    assert isinstance(in_flight, InFlight)
    in_flight.sent(msgspec.structs.replace(asked(), prefix=(7, 8)), 2.0)
    in_flight.withdraw(3.0)
    assert idle(world)
    assert world.router.index.match((7, 8), 4.0) == {}
    assert world.router.index.match(PROMPT, 4.0) == held
    assert len(tuner.outcomes) == 1
    assert all(e.health.healthy for e in world.router.pool.endpoints)


def test_withdrawn_it_gives_the_session_back_to_where_it_was_bound() -> None:
    world, _ = world_of_two("round_robin")
    first = sent(world)
    first.ended(1.0)
    second = sent(world, now_s=2.0)
    assert second.address != first.address
    second.withdraw(3.0)
    assert world.router.sessions.address_of(session_key(b"s")) == first.address


def test_served_elsewhere_load_prompt_and_session_go_along_and_the_first_choice_has_failed() -> None:
    world, _ = world_of_two()
    in_flight = sent(world)
    first, other = in_flight.decision.addresses
    in_flight.served(other, 200, 2.0, in_one_piece=True)
    assert world.router.pool.by_address[first].load == Load()
    assert world.router.pool.by_address[other].load == Load(1, 512, 0, 1)
    assert world.router.index.match(PROMPT, 2.0) == {other: 4}
    assert world.router.sessions.address_of(session_key(b"s")) == other
    assert world.router.pool.by_address[first].health.doubtful
    in_flight.ended(3.0)
    assert idle(world)


QUEUES = EngineReport(running_requests=8, waiting_requests=3, read_s=1.0, changed_s=1.0, stale=False)


@pytest.mark.parametrize(("code", "report"), [(429, UNKNOWN), (429, QUEUES), (503, QUEUES), (400, UNKNOWN)])
def test_an_engine_that_refuses_is_not_at_fault_and_has_not_computed_the_prompt(
    code: int, report: EngineReport
) -> None:
    world, _ = world_of_two()
    in_flight = sent(world)
    endpoint = world.router.pool.by_address[in_flight.address]
    endpoint.report = report
    in_flight.served(in_flight.address, code, 2.0, in_one_piece=True)
    assert not endpoint.health.doubtful
    assert world.router.index.match(PROMPT, 2.0) == {}
    in_flight.ended(3.0)
    assert idle(world)


@pytest.mark.parametrize("report", [UNKNOWN, msgspec.structs.replace(QUEUES, stale=True)])
def test_a_503_of_an_engine_where_nobody_is_known_to_wait_is_a_failure(report: EngineReport) -> None:
    world, _ = world_of_two()
    in_flight = sent(world)
    endpoint = world.router.pool.by_address[in_flight.address]
    endpoint.report = report
    in_flight.served(in_flight.address, 503, 2.0, in_one_piece=True)
    assert endpoint.health.doubtful


def test_a_503_of_an_engine_that_lately_served_others_in_flight_is_of_a_full_queue() -> None:
    world = World()
    endpoint = world.endpoint("a:1")
    first, running, refused = sent(world), sent(world), sent(world)
    first.served("a:1", 200, 2.0, in_one_piece=False)
    first.ended(3.0)
    refused.served("a:1", 503, 4.0, in_one_piece=True)
    assert not endpoint.health.doubtful
    assert endpoint.running_limit.is_reached(1, 1.0, 4.1)
    refused.ended(4.0)
    late = sent(world)
    late.served("a:1", 503, 20.0, in_one_piece=True)
    assert endpoint.health.doubtful
    running.ended(20.0)


def test_however_often_a_full_engine_is_passed_over_it_is_not_ejected() -> None:
    world, _ = world_of_two()
    for _ in range(3 * REQUEST_FAILURES_TO_EJECT):
        in_flight = sent(world, session=None)
        full, other = in_flight.decision.addresses
        world.router.pool.by_address[full].report = QUEUES
        in_flight.served(other, 200, 2.0, in_one_piece=True)
        in_flight.ended(3.0)
        world.router.pool.by_address[full].report = UNKNOWN
    assert all(not endpoint.health.doubtful for endpoint in world.router.pool.endpoints)


@pytest.mark.parametrize("has_refused", [True, False])
def test_an_engine_that_is_passed_over_has_failed_unless_it_refused_meanwhile(has_refused: bool) -> None:
    """Its report may be older than its full queue; but a limit alone excuses no failure."""
    world, _ = world_of_two()
    in_flight = sent(world, session=None, now_s=1.0)
    first, other = [world.router.pool.by_address[address] for address in in_flight.decision.addresses]
    first.identified(EngineIdentity(max_queued_requests=8))
    first.refused(1.5 if has_refused else 0.5)
    in_flight.served(other.address, 200, 2.0, in_one_piece=True)
    in_flight.ended(3.0)
    assert first.health.doubtful is not has_refused


@pytest.mark.parametrize(("code", "blames"), [(503, False), (500, True)])
def test_a_503_of_an_engine_that_refused_the_stream_meanwhile_is_of_a_full_queue(code: int, blames: bool) -> None:
    """Others filled it, so that neither its report nor our own requests tell."""
    world, _ = world_of_two()
    in_flight = sent(world, session=None, now_s=1.0)
    endpoint = world.router.pool.by_address[in_flight.address]
    endpoint.refused(1.5)
    in_flight.served(endpoint.address, code, 2.0, in_one_piece=True)
    in_flight.ended(3.0)
    assert endpoint.health.doubtful is blames


def test_where_all_are_full_the_prompt_is_cached_nowhere() -> None:
    world, _ = world_of_two()
    in_flight = sent(world)
    in_flight.served(in_flight.decision.addresses[1], 429, 2.0, in_one_piece=True)
    assert world.router.index.match(PROMPT, 2.0) == {}


def test_an_agent_that_strays_to_its_own_context_does_not_take_the_session_along() -> None:
    """Agents that share an id: the session moved with another agent, this one is served where its context stayed."""
    world, _ = world_of_two()
    in_flight = world.router.admit(asked(), now_s=1.0)
    assert isinstance(in_flight, InFlight)
    in_flight.decision = msgspec.structs.replace(in_flight.decision, strayed=True)
    in_flight.sent(asked(), 1.0)
    assert world.router.sessions.address_of(session_key(b"s")) is None
    in_flight.served(in_flight.decision.addresses[1], 200, 2.0, in_one_piece=True)
    assert world.router.sessions.address_of(session_key(b"s")) is None


def test_a_client_that_leaves_before_any_answer_is_a_499() -> None:
    world, tuner = world_of_two()
    sent(world).ended(2.0)
    assert tuner.outcomes[0].code == ABORTED_CODE


@pytest.mark.parametrize("answered", [False, True])
def test_how_requests_end_at_an_engine_that_left_says_nothing_of_the_next_at_its_address(answered: bool) -> None:
    changing = Changing()
    changing.leaves("b:1")
    for _ in range(REQUEST_FAILURES_TO_EJECT):
        changing.asks()
    changing.goes_on("sent")
    if answered:
        changing.goes_on("served")
    changing.leaves("a:1")
    changing.comes("a:1")
    for in_flight in changing.under_way:
        in_flight.ended(60.0)
    (new,) = changing.router.pool.endpoints
    assert new.health.healthy
    assert new.answered_s < 0, "it has answered nobody yet"


def test_a_prefill_that_ended_unseen_does_not_delay_the_estimate_of_the_next() -> None:
    """The engine is idle again when the second request comes: its prefill is due after its own time and no later."""
    world = World()
    endpoint = world.endpoint("a:1", prefill_ms_per_token=1.0)
    first = world.router.admit(request(tokens=10_000), now_s=0.0)
    assert isinstance(first, InFlight)
    first.ended(0.1)
    second = world.router.admit(request(tokens=100), now_s=0.2)
    assert isinstance(second, InFlight)
    endpoint.prefills.settle(0.35)
    assert endpoint.load == Load(1, 100, 0, 1)


def test_of_an_answer_in_one_piece_all_that_others_prefilled_since_it_was_sent_counts() -> None:
    """Its first part is seen when all of it is there."""
    world = World("fairlead")
    world.endpoint("a:1")
    whole, other = sent_new(world, 1), sent_new(world, 2)
    other.served("a:1", 200, 1.2, in_one_piece=False)
    other.first_token(1.2)
    whole.served("a:1", 200, 2.0, in_one_piece=True)
    whole.first_token(2.0)
    seen = whole.observation(Usage(), 2.0, streamed=False)
    assert (seen.prefilled_tokens, seen.concurrent_requests) == (512, 0.5)


def test_prompts_that_were_sent_after_it_may_have_delayed_its_first_token() -> None:
    world = World("fairlead")
    world.endpoint("a:1")
    sent_new(world, 1)
    stream = sent_new(world, 2)
    sent_new(world, 3), sent_new(world, 4)
    stream.served("a:1", 200, 1.2, in_one_piece=False)
    stream.first_token(1.2)
    sent_new(world, 5)
    assert stream.observation(Usage(), 2.0, streamed=True).came_after_tokens == 2 * 512


def test_at_an_engine_that_it_fell_back_to_only_prompts_sent_after_that_count() -> None:
    world = World("fairlead")
    world.endpoint("a:1")
    world.endpoint("b:1")
    stream = sent_new(world, 1)
    (other,) = {"a:1", "b:1"} - {stream.address}
    sent_new(world, 2)
    stream.served(other, 200, 1.2, in_one_piece=False)
    stream.first_token(1.3)
    assert stream.observation(Usage(), 2.0, streamed=True).came_after_tokens == 0


def test_what_was_observed_is_told_with_the_outcome() -> None:
    world, tuner = world_of_two()
    in_flight = sent(world)
    in_flight.served(in_flight.address, 200, 1.1, in_one_piece=False)
    in_flight.first_token(1.5)
    seen = in_flight.observation(Usage(500, 0, 9), 3.0, streamed=True)
    in_flight.ended(3.0, seen)
    assert tuner.outcomes == [Outcome(200, 2000.0, 500.0, 500, 0, 9)]


steps = st.lists(
    st.sampled_from(["sent", "served", "served elsewhere", "failed", "gone", "first_token", "ended", "withdraw"]),
    max_size=12,
)


@given(steps, st.booleans())
def test_in_any_order_any_number_of_times_nothing_leaks(order: list[str], ends: bool) -> None:
    world, tuner = world_of_two()
    in_flight = world.router.admit(asked(), now_s=0.0)
    assert isinstance(in_flight, InFlight)
    elsewhere = in_flight.decision.addresses[1]
    for number, step in enumerate(order, 1):
        now_s = float(number)
        match step:
            case "sent":
                in_flight.sent(asked(), now_s)
            case "served":
                in_flight.served(in_flight.address, 200, now_s, in_one_piece=False)
            case "served elsewhere":
                in_flight.served(elsewhere, 200, now_s, in_one_piece=True)
            case "failed":
                in_flight.served(in_flight.address, 503, now_s, in_one_piece=True)
            case "gone":
                in_flight.served("left the pool:1", 200, now_s, in_one_piece=True)
            case "first_token":
                in_flight.first_token(now_s)
            case "ended":
                in_flight.ended(now_s)
            case _:
                in_flight.withdraw(now_s)
        load = sum(e.load.inflight_requests for e in world.router.pool.endpoints)
        assert load == (in_flight.phase not in ("ended", "withdrawn"))
    if ends:
        in_flight.ended(99.0)
    else:
        in_flight.withdraw(99.0)
    assert idle(world)
    assert len(tuner.outcomes) <= 1


class Changing:
    """Two engines of which one may leave, as `serving.in_force` has them forgotten, and others come to its address."""

    def __init__(self) -> None:
        self.world, _ = world_of_two("round_robin")
        self.router = self.world.router
        self.made = list(self.router.pool.endpoints)
        self.under_way: list[InFlight] = []

    def leaves(self, address: str) -> None:
        router = self.router
        router.pool = Pool([e for e in router.pool.endpoints if e.address != address], {})
        router.index.remove(address)
        router.sessions.forget_endpoint(address)

    def comes(self, address: str) -> None:
        if address not in self.router.pool.by_address:
            self.made.append(make_endpoint(address))
            self.router.pool = Pool([*self.router.pool.endpoints, self.made[-1]], {})

    def asks(self) -> None:
        admitted = self.router.admit(msgspec.structs.replace(asked(), model="m"), now_s=1.0)
        if isinstance(admitted, InFlight):
            self.under_way.append(admitted)

    def goes_on(self, step: str) -> None:
        for in_flight in self.under_way:
            match step:
                case "sent":
                    in_flight.sent(asked(), 2.0)
                case "served":
                    in_flight.served(in_flight.address, 200, 3.0, in_one_piece=False)
                case "served elsewhere":
                    in_flight.served("b:1", 200, 3.0, in_one_piece=True)
                case "ended":
                    in_flight.ended(4.0)
                case _:
                    in_flight.withdraw(4.0)


changes = st.sampled_from(["asks", "leaves", "comes", "sent", "served", "served elsewhere", "ended", "withdraw"])


@given(st.lists(changes, max_size=16))
@example(["asks", "leaves", "sent", "ended"])
@example(["asks", "sent", "ended", "asks", "sent", "leaves", "withdraw"])
def test_who_leaves_while_requests_are_under_way_leaves_nothing_behind(order: list[str]) -> None:
    changing = Changing()
    for step in order:
        match step:
            case "asks":
                changing.asks()
            case "leaves":
                changing.leaves("a:1")
            case "comes":
                changing.comes("a:1")
            case _:
                changing.goes_on(step)
    changing.leaves("a:1")
    changing.goes_on("sent")
    changing.goes_on("withdraw")
    assert all(e.own == e.load == Load() for e in changing.made)
    assert changing.router.index.match(PROMPT, 5.0).keys() <= {"b:1"}
    assert changing.router.sessions.by_endpoint().keys() <= {"b:1"}


@pytest.mark.parametrize("policy", ["fairlead", "session_affinity", "random", "round_robin"])
def test_an_unread_request_goes_where_the_load_of_all_sidecars_is_least(policy: str) -> None:
    world = World(policy)
    world.endpoint("a:1", peers=Load(inflight_requests=3))
    world.endpoint("b:1", inflight_requests=2)
    world.endpoint("c:1", inflight_requests=1, peers=Load(inflight_requests=2))
    in_flight = world.router.admit(unread_facts(None))
    assert isinstance(in_flight, InFlight)
    assert in_flight.address == "b:1"
    assert in_flight.decision.why == "fallback"


def test_an_unread_request_skips_endpoints_that_drain_and_models_that_its_path_does_not_name() -> None:
    world = World()
    world.endpoint("a:1", "small")
    world.endpoint("b:1", "large", inflight_requests=1)
    world.endpoint("c:1", "large", inflight_requests=9)
    world.router.planner.draining.add("b:1")
    in_flight = world.router.admit(unread_facts("large"))
    assert isinstance(in_flight, InFlight)
    assert in_flight.address == "c:1"


def test_an_endpoint_that_never_answers_what_it_is_chosen_for_is_withheld_until_it_does() -> None:
    endpoint = Endpoint(EndpointSpec("a:1", "m"))
    for now_s in (0.0, 0.1, 0.2):
        endpoint.request_passed_over(now_s)
    assert endpoint.health.healthy, "the gateway may only need a moment"
    endpoint.request_passed_over(1.5)
    assert endpoint.health.withheld == {"unknown_to_envoy"}
    assert not endpoint.health.healthy
    endpoint.request_answered(2.0)
    assert endpoint.health.healthy
    for now_s in (3.0, 4.0, 5.0, 6.0):
        endpoint.request_passed_over(now_s)
    assert endpoint.health.healthy, "it has answered: failures eject it, as others"


def test_an_engine_that_the_gateway_does_not_know_is_not_at_fault() -> None:
    world, _ = world_of_two()
    unknown, known = world.router.pool.endpoints
    for now_s in (1.0, 2.0, 3.0):
        unknown.request_passed_over(now_s)
    assert unknown.health.withheld
    for _ in range(2 * REQUEST_FAILURES_TO_EJECT):
        unknown.health.withhold("unknown_to_envoy", active=False)  # on trial
        known.health.withhold("draining")
        in_flight = sent(world, session=None, now_s=4.0)
        known.health.withhold("draining", active=False)
        assert in_flight.address == unknown.address
        in_flight.served(known.address, 200, 5.0, in_one_piece=True)
        in_flight.ended(5.0)
        assert unknown.health.withheld
    unknown.request_answered(6.0)
    assert unknown.health.healthy
    assert not unknown.health.doubtful


def test_what_the_gateway_answers_by_itself_blames_no_engine_and_leaves_no_prompt_in_the_index() -> None:
    world, tuner = world_of_two()
    for _ in range(REQUEST_FAILURES_TO_EJECT):
        in_flight = sent(world, session=None)
        first = in_flight.address
        in_flight.unserved(503)
        in_flight.ended(2.5)
        assert tuner.outcomes[-1].code == 503
        assert world.router.index.blocks(first) == 0
    assert not world.router.pool.by_address[first].health.doubtful
    assert world.router.pool.by_address[first].load.inflight_requests == 0


@pytest.mark.parametrize(("code", "blames"), [(503, False), (400, False), (500, True)])
def test_a_success_that_turns_out_a_refusal_leaves_no_prompt_in_the_index(code: int, blames: bool) -> None:
    world, tuner = world_of_two()
    for _ in range(REQUEST_FAILURES_TO_EJECT):
        in_flight = sent(world, session=None)
        first = in_flight.address
        in_flight.served(first, 200, 2.0, in_one_piece=False)
        in_flight.refused_in_stream(code, 2.0)
        in_flight.refused_in_stream(200, 2.0)
        in_flight.ended(2.5)
        assert tuner.outcomes[-1].code == code
        assert world.router.index.blocks(first) == 0
    assert world.router.pool.by_address[first].health.doubtful is blames
