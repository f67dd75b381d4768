"""A request that no engine can begin soon is held back in Envoy, and begins, or is refused, later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
from msgspec.structs import replace

from fairlead.admin.waiting import document
from fairlead.admission.admission import Admission, Rules
from fairlead.admission.gate import LEAST_BOUND_MS
from fairlead.admission.limits import BandRules, Limits, QueueRules
from fairlead.core.budget import ObservationBudget
from fairlead.core.endpoint import Speed
from fairlead.core.load import Load
from fairlead.core.objective import Slo
from fairlead.core.reported import EngineReport
from fairlead.decision_log.columns import COLUMNS
from fairlead.decision_log.log import DecisionLog
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.services import Services
from fairlead.extproc.waiting_room import Naming, WaitingRoom
from tests.extproc.world import (
    Conversation,
    chat,
    destination,
    kinds,
    later,
    make_services,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    services_around,
    set_headers,
    streamed,
    streamed_headers,
)

BUSY = Load(1, 20_000, 20_000)  # two seconds of prefill: above the bound, which is one
NAMING = Naming(levels={b"chat": 1, b"batch": -1}, priority_headers=(b"x-priority",), tenant_headers=(b"x-tenant",))
BANDS = {0: BandRules(), 1: BandRules("chat"), -1: BandRules("batch", share=0.5)}


_asked: list[Conversation] = []


@pytest.fixture(autouse=True)
async def nothing_is_left_open() -> AsyncIterator[None]:
    """A stream that nobody closes would leave a coroutine that was never awaited."""
    yield
    while _asked:
        _asked.pop().stream.close()


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Room:
    """The services of a pool whose engines of `small` are busy, and the requests that meet it."""

    def __init__(self, queue: QueueRules | None = None, *, busy: bool = True) -> None:
        self.clock = Clock()
        plain = make_services()
        waiting = WaitingRoom(Admission(plain.router), self.clock, pytest.fail)
        self.services: Services = services_around(plain.router, self.clock, waiting=waiting)
        self.rules = Rules(queue or QueueRules(bands=BANDS), 1000.0)
        self.use(self.rules)
        self.endpoints = self.services.router.pool.by_address
        if busy:
            for address in ("10.0.0.1:1", "10.0.0.2:1"):
                self.endpoints[address].take(BUSY)

    def use(self, rules: Rules | None, naming: Naming = NAMING) -> None:
        self.services.waiting.use(rules, naming, 30.0)

    def ask(
        self, model: str = "small", *, mode: pb.BodySendMode = pb.BUFFERED, text: str = "hello", **headers: str
    ) -> Conversation:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        conversation = Conversation(self.services)
        _asked.append(conversation)
        body = chat(model, messages=[{"role": "user", "content": text}])
        conversation.say(request_headers(mode=mode, extra=named), request_body(body))
        return conversation

    def is_slow(self) -> None:
        """One more prefill is more than the bound."""
        for endpoint in self.endpoints.values():
            endpoint.speed = Speed(2000.0, 20.0)

    def has_room(self, address: str = "10.0.0.1:1") -> None:
        self.endpoints[address].give_back(BUSY)

    @property
    def waiting(self) -> int:
        return self.services.admission.queue.requests

    def is_clean(self) -> bool:
        queue = self.services.admission.queue
        return (queue.requests, queue.bytes, self.services.held.bytes) == (0, 0, 0)


def refused(reply: pb.ProcessingResponse) -> tuple[int, str, int]:
    """Status, reason and retry-after, of an answer in OpenAI's envelope."""
    answer, headers = reply.immediate_response, set_headers(reply)
    assert json.loads(answer.body)["error"]["message"]
    return answer.status.code, headers["x-llm-d-request-dropped-reason"], int(headers["retry-after"])


async def test_while_an_endpoint_has_room_the_replies_are_those_without_a_queue() -> None:
    room = Room(busy=False)
    on, off = room.ask(), Conversation(make_services())
    off.say(request_headers(), request_body(chat()))
    assert [r.SerializeToString() for r in on.replies] == [r.SerializeToString() for r in off.replies]
    assert room.waiting == 0


async def test_it_waits_with_envoys_knowledge_and_begins_where_room_came_to_be() -> None:
    room = Room()
    asked = room.ask()
    assert room.waiting == 1
    assert asked.replies[-1].override_message_timeout.ToSeconds() == 35
    room.has_room("10.0.0.2:1")
    (reply,) = await later(asked)
    assert (destination(reply) or "").startswith("10.0.0.2:1,")
    assert room.endpoints["10.0.0.2:1"].load.inflight_requests == 1
    asked.say(response_headers(), response_trailers())
    assert room.endpoints["10.0.0.2:1"].load == Load()
    assert room.is_clean()


async def test_the_decision_log_and_the_trace_have_its_wait() -> None:
    room, rows, at = Room(), list[tuple[object, ...]](), list(COLUMNS).index("waited_ms")
    room.services.log = DecisionLog(rows.extend, sample=1.0, models=lambda: ())
    waits = room.ask()
    room.clock.now_s += 3.0
    room.has_room()
    await later(waits)
    waits.say(response_headers(), response_trailers())
    room.ask().say(response_headers(), response_trailers())
    await room.services.log.stop()
    assert [row[at] for row in rows] == [3000.0, 0.0]


async def test_in_full_duplex_envoy_waits_unasked_and_gets_headers_and_body_together() -> None:
    room = Room()
    asked = room.ask(mode=pb.FULL_DUPLEX_STREAMED)
    assert asked.replies == []
    room.has_room()
    replies = await later(asked)
    assert kinds(replies) == ["request_headers", "request_body."]
    assert streamed(replies) == chat()


async def test_another_model_does_not_wait_for_the_full_one() -> None:
    room = Room()
    room.ask("small")
    assert (destination(room.ask("large").replies[-1]) or "").startswith("10.0.0.3:1")


async def test_no_more_begin_than_there_is_room_for() -> None:
    room = Room()
    room.is_slow()
    asked = [room.ask() for _ in range(5)]
    room.has_room()
    await later(asked[0])
    await asyncio.sleep(0)
    assert room.waiting == 4


async def test_a_higher_priority_begins_first() -> None:
    room = Room()
    room.is_slow()
    batch, urgent = room.ask(x_priority="batch"), room.ask(x_priority="chat")
    room.has_room()
    assert destination((await later(urgent))[0])
    assert room.waiting == 1
    batch.stream.close()


async def test_a_deadline_goes_first_among_its_tenants_requests_and_not_where_nobody_names_tenants() -> None:
    room = Room()
    room.is_slow()
    own, hasty = room.ask(x_tenant="t"), room.ask(x_tenant="t", x_slo_ttft_ms="1")
    room.has_room()
    assert destination((await later(hasty))[0])
    own.stream.close()
    room = Room()
    room.is_slow()
    first, hasty = room.ask(), room.ask(x_slo_ttft_ms="1")
    room.has_room()
    assert destination((await later(first))[0])
    hasty.stream.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", b'{"text": "hello"}'),
        ("/v1/rerank", b'{"query": "hello"}'),
        ("/v1/audio/speech", b'{"voice": "a"}'),
    ],
)
async def test_who_names_no_model_waits_with_those_who_do(path: str, body: bytes) -> None:
    room = Room()
    room.endpoints["10.0.0.3:1"].take(BUSY)
    room.is_slow()
    batch = Conversation(room.services)
    _asked.append(batch)
    batch.say(request_headers(path=path, extra={"x-priority": "batch"}), request_body(body))
    urgent = room.ask(x_priority="chat")
    room.has_room()
    assert destination((await later(urgent))[0])
    assert room.waiting == 1


async def test_a_client_that_leaves_is_forgotten_at_once() -> None:
    room = Room()
    asked = [room.ask() for _ in range(100)]
    for conversation in asked:
        conversation.stream.close()
    assert room.is_clean()
    assert room.endpoints["10.0.0.1:1"].load == BUSY
    assert room.services.admission.counts["default"].outcomes == {"client_gone": 100}


async def test_a_client_that_leaves_after_its_turn_came_gives_its_endpoint_back() -> None:
    room = Room()
    asked = room.ask()
    room.has_room()
    await asyncio.sleep(0)
    assert room.waiting == 0
    asked.stream.close()
    assert room.endpoints["10.0.0.1:1"].load == Load()


async def test_who_waits_too_long_is_told_when_to_come_back() -> None:
    room = Room()
    asked = room.ask()
    room.clock.now_s += 31
    room.services.waiting._release()
    (reply,) = await later(asked)
    assert refused(reply) == (429, "rejected-ttl-expired", 1)
    assert room.is_clean()


async def test_those_whose_time_is_over_at_once_are_told_in_steps_between_which_others_are_served() -> None:
    room = Room()
    asked = [room.ask() for _ in range(150)]
    room.clock.now_s += 31
    left = []
    while room.waiting:
        room.services.waiting._release()
        left.append(room.waiting)
    assert left == [86, 22, 0]
    assert {refused((await later(each))[0]) for each in asked} == {(429, "rejected-ttl-expired", 1)}


async def test_a_client_may_shorten_its_wait() -> None:
    room = Room()
    hasty, patient = room.ask(x_llm_d_inference_ttl="2s"), room.ask(x_llm_d_inference_ttl="10m")
    room.clock.now_s += 3
    room.services.waiting._release()
    assert refused((await later(hasty))[0])[0] == 429
    assert room.waiting == 1
    patient.stream.close()


async def test_a_full_queue_answers_at_once_and_a_higher_priority_displaces() -> None:
    room = Room(QueueRules(limits=Limits(requests=1), bands=BANDS))
    batch = room.ask(x_priority="batch")
    assert refused(room.ask(x_priority="batch").replies[-1]) == (429, "rejected-saturated", 1)
    urgent = room.ask(x_priority="chat")
    assert refused((await later(batch))[0]) == (429, "rejected-saturated", 1)
    assert room.waiting == 1
    urgent.stream.close()
    assert room.is_clean()


async def test_a_priority_that_is_not_configured_is_the_usual_one() -> None:
    room = Room()
    room.ask(x_priority="root")
    assert list(room.services.admission.queue.groups["small"].bands) == [0]


async def test_a_drain_refuses_all_that_waits_and_all_that_would() -> None:
    room = Room()
    asked = room.ask()
    room.services.waiting.drain()
    assert refused((await later(asked))[0]) == (503, "rejected-shutting-down", 1)
    assert refused(room.ask().replies[-1]) == (503, "rejected-shutting-down", 1)
    assert room.is_clean()


async def test_a_reload_keeps_the_queue_and_its_order() -> None:
    room = Room()
    first, second = room.ask(), room.ask()
    room.use(Rules(QueueRules(bands=BANDS, aging_s=5.0)))
    assert room.waiting == 2
    room.has_room()
    assert all([await later(first), await later(second)])


@pytest.mark.parametrize("seen", ["usage", "events until its client leaves"])
async def test_a_request_counts_for_as_long_an_answer_as_its_tenant_had_before(seen: str) -> None:
    room = Room(busy=False)
    room.services.budget = ObservationBudget(1000.0, 10_000.0)
    for _ in range(30):
        asked = room.ask(x_tenant="long")
        if seen == "usage":
            usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 5000}}
            asked.say(response_headers(), response_body(json.dumps(usage).encode(), end=True))
        else:
            asked.say(streamed_headers(), response_body(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n' * 5000))
        asked.stream.close()
    for address in ("10.0.0.1:1", "10.0.0.2:1"):
        room.endpoints[address].take(BUSY)
    room.ask(x_tenant="long")
    room.ask(x_tenant="another")
    long, another = (waiting.cost_ms for waiting in room.services.admission.queue.all())
    assert long > 3 * another
    (waits,) = document(room.services.admission, room.clock())
    assert max(tenant["answers_over_usual"] for tenant in waits["tenants"]) > 3


async def test_a_pool_that_is_replaced_under_the_same_rules_forgets_no_tenants_share() -> None:
    room = Room()
    room.is_slow()
    flood = [room.ask(x_tenant="b") for _ in range(3)]
    room.has_room()
    await later(flood[0])
    late = room.ask(x_tenant="c")
    room.use(room.rules)
    flood[0].stream.close()
    assert destination((await later(late))[0])
    assert room.waiting == 2


async def test_a_reload_without_admission_lets_all_of_it_begin() -> None:
    room = Room()
    asked = room.ask()
    room.use(None)
    assert destination((await later(asked))[0])
    assert room.endpoints["10.0.0.1:1"].notify is None


async def test_when_the_last_endpoint_is_gone_those_who_wait_are_told_so() -> None:
    room = Room()
    asked = room.ask()
    for address in ("10.0.0.1:1", "10.0.0.2:1"):
        for _ in range(3):
            room.endpoints[address].probed(False, room.clock.now_s, 3)
    assert refused((await later(asked))[0]) == (503, "rejected-no-endpoints", 1)


async def test_envoys_own_answer_to_a_request_that_waits_ends_its_wait() -> None:
    room = Room()
    asked = room.ask()
    asked.say(response_headers(408, end=True))
    assert room.is_clean()
    asked.stream.close()


async def test_a_chosen_engine_that_is_full_is_left_for_one_that_is_not() -> None:
    room = Room(busy=False)
    room.endpoints["10.0.0.1:1"].refused(room.clock.now_s)
    for _ in range(4):
        assert (destination(room.ask().replies[-1]) or "").startswith("10.0.0.2:1")


async def test_an_endpoint_that_an_operator_drains_is_no_room_while_another_serves() -> None:
    room = Room(busy=False)
    room.services.router.planner.draining.add("10.0.0.1:1")
    room.endpoints["10.0.0.2:1"].take(BUSY)
    asked = room.ask()
    assert room.waiting == 1
    room.has_room("10.0.0.2:1")
    assert (destination((await later(asked))[0]) or "").startswith("10.0.0.2:1")
    room.services.router.planner.draining.add("10.0.0.2:1")
    assert destination(room.ask().replies[-1])
    assert room.waiting == 0


async def test_a_prompt_waits_for_an_endpoint_that_it_fits_and_shorter_ones_go_on() -> None:
    room = Room(busy=False)
    room.endpoints["10.0.0.1:1"].max_model_len = 1000
    room.endpoints["10.0.0.2:1"].take(BUSY)
    long = room.ask(text="word " * 3000)
    assert room.waiting == 1
    assert (destination(room.ask().replies[-1]) or "").startswith("10.0.0.1:1")
    room.has_room("10.0.0.2:1")
    assert (destination((await later(long))[0]) or "").startswith("10.0.0.2:1")


async def test_a_prompt_that_no_endpoint_fits_is_sent_to_be_refused_and_holds_nobody_up() -> None:
    room = Room(busy=False)
    for address in ("10.0.0.1:1", "10.0.0.2:1"):
        room.endpoints[address].max_model_len = 1000
        room.endpoints[address].take(Load(1, 0, 0))
        room.endpoints[address].report = EngineReport(kv_usage=0.1, kv_capacity_tokens=2000, stale=False)
    assert destination(room.ask(text="word " * 3000).replies[-1])
    assert room.waiting == 0


@pytest.mark.parametrize("ends", [(response_headers(400), response_trailers()), (response_headers(503, end=True),), ()])
async def test_long_prompts_that_no_engine_answers_let_no_more_wait_at_engines(
    ends: tuple[pb.ProcessingRequest, ...],
) -> None:
    room = Room(busy=False)
    room.use(Rules(QueueRules(bands=BANDS)))
    gate = room.services.admission.gate
    room.ask().say(response_headers(), response_trailers())
    for number in range(20):
        long = room.ask(text=f"{number} " + "word " * 100_000)
        long.say(*ends)
        long.stream.close()
    assert gate.bound_ms("small") == LEAST_BOUND_MS
    room.endpoints["10.0.0.1:1"].max_model_len = room.endpoints["10.0.0.2:1"].max_model_len = 1000
    room.ask(text="word " * 100_000)
    assert gate.bound_ms("small") == LEAST_BOUND_MS


async def test_a_prompt_that_is_too_long_waits_as_the_longest_would_and_not_for_its_tokens() -> None:
    room = Room()
    for address in ("10.0.0.1:1", "10.0.0.2:1"):
        room.endpoints[address].max_model_len = 1000
    room.ask(text="word " * 100_000)
    (group,) = room.services.admission.queue.groups.values()
    assert group.bands[0].waiting_ms < 1000 * 0.1 + 256 * 20.0 + 1


async def test_an_engine_that_refuses_makes_the_next_ones_wait() -> None:
    room = Room(busy=False)
    for address in ("10.0.0.1:1", "10.0.0.2:1"):
        asked = room.ask()
        asked.say(response_headers(429, served=address))
        asked.stream.close()
    held = room.ask()
    assert room.waiting == 1
    room.clock.now_s += 1.1
    room.services.waiting._release()
    assert destination((await later(held))[0])


@pytest.mark.parametrize("end", [lambda c: c.stream.close(), lambda c: c.say(response_headers(200, end=True))])
async def test_nothing_is_left_whichever_way_streams_end(end: Callable[[Conversation], object]) -> None:
    room = Room()
    asked = [room.ask(x_tenant=str(number % 3)) for number in range(9)]
    room.has_room()
    await asyncio.sleep(0)
    for conversation in asked:
        end(conversation)
        conversation.stream.close()
    assert room.is_clean()
    assert room.endpoints["10.0.0.1:1"].load == Load()
    assert room.endpoints["10.0.0.2:1"].load == BUSY


async def test_what_says_how_to_wait_ends_here() -> None:
    room = Room(busy=False)
    room.use(None)
    asked = room.ask(x_llm_d_inference_objective="chat", x_gateway_inference_fairness_id="t", x_slo_ttft_ms="500")
    removed = asked.replies[-1].request_body.response.header_mutation.remove_headers
    assert removed == ["x-gateway-inference-fairness-id", "x-llm-d-inference-objective", "x-slo-ttft-ms"]


async def test_a_client_that_claims_to_be_a_cascade_waits_as_others_do() -> None:
    room = Room()
    assert room.ask(x_fairlead_inner="guessed").stream.held is not None


async def test_an_objective_is_that_of_the_route_or_of_a_request_somebody_vouches_for() -> None:
    room = Room(busy=False)
    waiting, ours = room.services.waiting, {b"x-slo-ttft-ms": b"900", b"x-slo-tpot-ms": b"30"}
    assert waiting.slo(ours, "small") is None
    room.use(room.rules, replace(NAMING, slos={"small": Slo(500.0, refuses=True)}))
    assert waiting.slo(ours, "small") == Slo(500.0, refuses=True)
    assert waiting.slo(ours, "large") is None
    room.use(room.rules, replace(NAMING, slos={"*": Slo(500.0, refuses=True)}, believes_slos=True))
    assert waiting.slo(ours, "large") == Slo(900.0, 30.0, refuses=True)
    assert waiting.slo({b"x-slo-ttft-ms": b"soon"}, "large") == Slo(500.0, refuses=True)


async def test_what_no_engine_can_answer_in_time_gets_429_on_a_route_that_refuses() -> None:
    room = Room(busy=False)
    room.is_slow()
    room.use(room.rules, replace(NAMING, slos={"small": Slo(500.0, refuses=True), "large": Slo(500.0)}))
    status, reason, retry_after_s = refused(room.ask("small").replies[-1])
    assert (status, reason) == (429, "rejected-saturated")
    assert retry_after_s >= 1
    assert destination(room.ask("large").replies[-1])
    assert room.is_clean()


async def test_it_waits_no_longer_than_its_objective_can_be_met() -> None:
    room = Room()
    room.use(room.rules, replace(NAMING, slos={"small": Slo(2000.0, refuses=True)}))
    waits = room.ask()
    assert room.waiting == 1
    room.clock.now_s += 2.0
    room.services.waiting._release()
    (reply,) = await later(waits)
    assert refused(reply)[:2] == (429, "rejected-ttl-expired")
    assert room.is_clean()


def paced(room: Room, *, refuses: bool, tpot_ms: float = 30.0) -> None:
    """A token of `small` takes 20 ms, and 10 more for each that decodes beside it."""
    for address in ("10.0.0.1:1", "10.0.0.2:1"):
        room.endpoints[address].speed = Speed(0.1, 20.0, batch_slowdown=0.5)
        room.endpoints[address].take(DECODING)
    room.use(room.rules, replace(NAMING, slos={"small": Slo(tpot_ms=tpot_ms, refuses=refuses)}))


DECODING = Load(4, 0, 0, 4)


async def test_who_wants_a_pace_waits_until_an_endpoint_keeps_it_and_others_go_on() -> None:
    room = Room(busy=False)
    paced(room, refuses=True)
    waits = room.ask()
    assert room.waiting == 1
    room.use(room.rules, NAMING)
    assert destination(room.ask().replies[-1]), "one that wants no pace"
    room.endpoints["10.0.0.2:1"].give_back(DECODING)
    assert (destination((await later(waits))[0]) or "").startswith("10.0.0.2:1")


async def test_a_pace_that_no_idle_endpoint_keeps_is_not_waited_for() -> None:
    room = Room(busy=False)
    paced(room, refuses=True, tpot_ms=19.0)
    assert refused(room.ask().replies[-1])[0] == 429
    paced(room, refuses=False, tpot_ms=19.0)
    assert destination(room.ask().replies[-1])
    assert room.waiting == 0


async def test_a_pace_that_does_not_come_is_refused_or_served_as_well_as_may_be_as_the_route_says() -> None:
    room = Room(busy=False)
    paced(room, refuses=True)
    strict = room.ask()
    room.use(room.rules, replace(NAMING, slos={"small": Slo(tpot_ms=30.0)}))
    relaxed = room.ask()
    assert room.waiting == 2
    room.clock.now_s += 16  # more than half of the longest wait
    room.services.waiting._release()
    assert destination((await later(relaxed))[0])
    room.clock.now_s += 16
    room.services.waiting._release()
    assert refused((await later(strict))[0])[:2] == (429, "rejected-ttl-expired")
    assert room.is_clean()


async def test_with_evict_lower_envoy_is_told_to_end_a_batch_answer_for_chat_that_has_waited() -> None:
    room = Room(busy=False)
    room.use(replace(room.rules, evicts_lower=True))
    room.is_slow()
    sent: list[bytes] = []
    batch = [room.ask(x_priority="batch") for _ in range(2)]  # one at each endpoint
    for conversation in batch:
        conversation.stream.send = sent.append
        conversation.say(streamed_headers())
    chat = room.ask(x_priority="chat")
    assert room.waiting == 1
    room.clock.now_s += 0.6
    room.services.waiting._release()
    room.services.waiting._release()
    assert [pb.ProcessingResponse.FromString(reply).immediate_response.status.code for reply in sent] == [429]
    batch[1].stream.close()  # as Envoy does: the newest
    (reply,) = await later(chat)
    assert destination(reply)
    assert room.services.recorder.requests["small", "small", "10.0.0.2:1", 429] == 1
    assert room.services.admission.counts["batch"].outcomes == {"evicted": 1}
    assert [conversation.stream.running is None for conversation in batch] == [False, True]


async def test_what_runs_is_left_alone_by_default() -> None:
    room = Room(busy=False)
    room.is_slow()
    sent: list[bytes] = []
    batch = [room.ask(x_priority="batch") for _ in range(2)]
    for conversation in batch:
        conversation.stream.send = sent.append
        conversation.say(streamed_headers())
    room.ask(x_priority="chat")
    assert room.waiting == 1
    room.clock.now_s += 5
    room.services.waiting._release()
    assert sent == []
