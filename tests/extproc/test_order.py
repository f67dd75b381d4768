"""Messages in any order, in any mode, with faults of ours anywhere: nothing leaks, nothing raises, all is answered."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.prompt import Malformed
from fairlead.cascade.counts import CascadeCounts
from fairlead.cascade.escalation import Settled
from fairlead.cascade.route import CascadeRoute
from fairlead.core.budget import ObservationBudget
from fairlead.core.load import Load
from fairlead.extproc.body_reader import ReaderLostError
from fairlead.extproc.cascade import RequestCascades
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.phases import REQUEST, RESPONSE, UNSETTLED
from fairlead.extproc.processing import Processing
from fairlead.extproc.reading import Question, Read, read_whole
from fairlead.extproc.services import Services
from tests.extproc.world import (
    Conversation,
    as_response,
    chat,
    destination,
    header_map,
    kinds,
    make_services,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
    with_subset,
)

DUPLEX = pb.FULL_DUPLEX_STREAMED
BODY = chat()
LEVERS = chat(kv_transfer_params={"do_remote_prefill": True})
HEADERS, PICK, ANSWER = request_headers(), request_body(BODY), response_headers()
DUPLEX_HEADERS = request_headers(mode=DUPLEX, response_mode=DUPLEX)


def first_of_all(message: pb.ProcessingRequest, mode: pb.BodySendMode = DUPLEX) -> pb.ProcessingRequest:
    """The message as Envoy sends it where the filter skips the headers: the first one tells the modes."""
    first = pb.ProcessingRequest.FromString(message.SerializeToString())
    first.protocol_config.request_body_mode = mode
    return first


OUT_OF_ORDER = {
    "a second request": ([HEADERS, PICK, HEADERS], ["request_headers"]),
    "a second request while the body is awaited": ([HEADERS, HEADERS], ["request_headers"]),
    "a body before the headers": ([PICK], ["request_body"]),
    "a body before the headers, with levers of engines": ([request_body(LEVERS)], ["immediate_response"]),
    "a second body": ([HEADERS, PICK, PICK], ["request_body"]),
    "a second body, with levers of engines": ([HEADERS, PICK, request_body(LEVERS)], ["immediate_response"]),
    "second request trailers": ([HEADERS, PICK, request_trailers(), request_trailers()], ["request_trailers"]),
    "a body after the trailers": ([HEADERS, PICK, request_trailers(), PICK], ["request_body"]),
    "trailers first": ([request_trailers()], ["request_trailers"]),
    "a second answer": ([HEADERS, PICK, ANSWER, ANSWER], ["response_headers"]),
    "an answer's body before its headers": ([HEADERS, PICK, response_body(b"x")], ["response_body"]),
    "an answer's trailers before its headers": ([HEADERS, PICK, response_trailers()], ["response_trailers"]),
    "a body after the answer's end": (
        [HEADERS, PICK, response_headers(end=True), response_body(b"")],
        ["response_body"],
    ),
    "trailers after trailers": (
        [HEADERS, PICK, ANSWER, response_trailers(), response_trailers()],
        ["response_trailers"],
    ),
    "duplex: a second request": ([DUPLEX_HEADERS, PICK, DUPLEX_HEADERS], ["request_headers"]),
    "duplex: a second request before the body is here in full": (
        [DUPLEX_HEADERS, request_body(BODY, end=False), DUPLEX_HEADERS],
        ["immediate_response"],
    ),
    "duplex: a body before the headers": ([first_of_all(PICK)], ["request_body."]),
    "duplex: a part of a body before the headers": (
        [first_of_all(request_body(BODY, end=False))],
        ["immediate_response"],
    ),
    "duplex: a second body has no answer": ([DUPLEX_HEADERS, PICK, PICK], []),
    "duplex: an answer's body before its headers": ([DUPLEX_HEADERS, PICK, response_body(b"x")], ["response_body+"]),
}


@pytest.mark.parametrize("case", OUT_OF_ORDER)
def test_out_of_order_it_is_answered_counted_and_nothing_stays_in_flight(case: str) -> None:
    conversation = Conversation()
    (*lawful, last), expected = OUT_OF_ORDER[case]
    conversation.say(*lawful)
    assert conversation.services.recorder.out_of_order_messages == 0
    assert kinds(conversation.say(last)) == expected
    assert idle(conversation.services)
    assert conversation.services.recorder.out_of_order_messages == 1
    conversation.say(last)
    assert conversation.services.recorder.out_of_order_messages == 1, "once for a stream"


def test_out_of_order_the_prompt_is_not_taken_to_be_cached() -> None:
    conversation = Conversation()
    conversation.say(HEADERS, request_body(chat(messages=[{"role": "user", "content": "x" * 4096}])))
    index = conversation.services.router.index
    assert sum(index.blocks(address) for address in conversation.endpoints) == 8
    conversation.say(HEADERS)
    assert sum(index.blocks(address) for address in conversation.endpoints) == 0


@pytest.mark.parametrize("so_far", [[], [HEADERS], [DUPLEX_HEADERS, request_body(BODY, end=False)]])
def test_an_answer_of_envoys_own_ends_the_request(so_far: list[pb.ProcessingRequest]) -> None:
    conversation = Conversation()
    conversation.say(*so_far)
    assert kinds(conversation.say(response_headers(408))) == ["response_headers"]
    assert conversation.services.held.bytes == 0
    assert conversation.services.recorder.out_of_order_messages == 0


def test_the_parts_of_a_refused_body_that_were_on_their_way_are_no_fault() -> None:
    conversation = Conversation()
    large = request_body(b"x" * conversation.services.max_body_bytes, end=False)
    assert kinds(conversation.say(DUPLEX_HEADERS, large, large, large)) == ["immediate_response"]
    assert conversation.services.recorder.out_of_order_messages == 0


@pytest.mark.parametrize("status", ["9" * 5000, "-1", "", "0", "1e3", "٢٠٠", "2 0", "99999"])
def test_a_status_that_http_does_not_know_counts_as_no_answer(status: str) -> None:
    conversation = Conversation()
    odd = pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=header_map({":status": status})))
    conversation.say(HEADERS, PICK, odd)
    conversation.stream.close()
    assert [code for *_, code in conversation.services.recorder.requests] == [499]


def test_a_subset_hint_of_the_body_overrides_that_of_the_headers() -> None:
    first, second = request_headers(subset=["10.0.0.1:1"]), with_subset(request_body(BODY), ["10.0.0.2:1"])
    _, picked = Conversation().say(first, second)
    assert set((destination(picked) or "").split(",")) == {"10.0.0.2:1"}


def test_in_full_duplex_the_subset_hint_that_came_last_counts() -> None:
    hinted = [with_subset(request_body(BODY[:9], end=False), ["10.0.0.1:1"]), request_body(BODY[9:], end=False)]
    replies = Conversation().say(DUPLEX_HEADERS, *hinted, with_subset(request_trailers(), ["10.0.0.2:1"]))
    assert set((destination(replies[0]) or "").split(",")) == {"10.0.0.2:1"}
    assert streamed(replies) == BODY


@pytest.mark.parametrize("then", ["a second request", "the stream's end", "Envoy's own answer"])
def test_a_pick_that_is_pending_is_dropped_and_takes_no_load(then: str) -> None:
    services = services_with(Faults(iter(())))
    processing = Processing(services)
    with patch("fairlead.extproc.pick.INLINE_BYTES", 10):
        processing.on(HEADERS)
        processing.on(PICK)
    later: Any = processing.later()
    later.send(None)
    match then:
        case "a second request":
            processing.on(HEADERS)
        case "Envoy's own answer":
            processing.on(ANSWER)
        case _:
            processing.close()
    assert finished(later) == []
    assert idle(services)


# ---- any order, any fault ---------------------------------------------------------------------------------------


class _Turn:
    """What an event loop would wait for."""

    def __await__(self) -> Generator[None]:
        yield


@dataclass
class Faults:
    """Calls go wrong by turns, as hypothesis says; the clock jumps by turns too."""

    turns: Iterator[int]
    now_s: float = 100.0

    def __call__(self) -> float:
        self.now_s += (0.0, 0.01, 30.0, -50.0)[next(self.turns, 0) % 4]
        return self.now_s

    def flaky(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if next(self.turns, 0) % 5 == 4:
                raise ZeroDivisionError("on purpose")
            return call(*arguments, **named)

        return called


class Reader:
    """Reads long bodies after a turn; its process may be lost."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    async def read(self, body: bytes, asked: Question) -> Read | Malformed:
        await _Turn()
        match next(self._faults.turns, 0) % 5:
            case 3:
                raise ReaderLostError
            case 4:
                raise ZeroDivisionError("on purpose")
        return read_whole(body, asked)


def cascades(faults: Faults) -> RequestCascades:
    async def settle(*_: object) -> Settled:
        await _Turn()
        settled: Settled = faults.flaky(Settled)(None, False, "", "", "", 1, (0.5,), 1.0)
        return settled

    escalation: Any = SimpleNamespace(secret=b"secret", counts=CascadeCounts(), settle=settle)
    made = RequestCascades(escalation)
    made.routes = {"auto": CascadeRoute("auto", ("small", "large"), (0.5,))}
    return made


def services_with(faults: Faults) -> Services:
    parts: dict[str, Any] = {"cascades": cascades(faults), "reader": Reader(faults)}
    budget = ObservationBudget(1000.0, 1000.0)
    parts["budget"] = SimpleNamespace(open=faults.flaky(budget.open), ended=budget.ended)
    services = replace(make_services(), clock_s=faults, **parts)
    recorder, learner, router = services.recorder, services.learner, services.router
    learner_parts = {name: faults.flaky(getattr(learner, name)) for name in ("observe", "rates")}
    tuner: Any = SimpleNamespace(observe=faults.flaky(router.tuner.observe))
    parts["learner"], router.tuner = SimpleNamespace(**learner_parts), tuner
    for holder, names in (
        (recorder, ("decided", "ended", "observed")),
        (router, ("rank", "forget_restarted", "commit")),
        (router.index, ("match", "insert")),
    ):
        for name in names:
            setattr(holder, name, faults.flaky(getattr(holder, name)))
    return replace(services, **parts)


BODIES = [
    b"", b"not json", BODY, chat("auto"), chat("large", stream=True), chat("no such model"), LEVERS, chat(x="y" * 300),
    chat("auto", x="y" * 300), chat(kv_transfer_params={}, x="y" * 300), b"{" * 300,
]  # fmt: skip
ANSWERS = [{":status": "200", "content-type": "application/json", "content-length": "2"}, {":status": "200"}] + [
    {":status": status, "content-type": "text/event-stream"} for status in ("200", "429", "503", "9" * 5000, "odd")
]
modes = st.sampled_from([pb.NONE, pb.STREAMED, pb.BUFFERED, DUPLEX])
messages = st.one_of(
    st.builds(
        request_headers,
        st.sampled_from(["POST", "POST", "POST", "GET", "PUT"]),
        st.sampled_from(["/v1/chat/completions", "/generate", "/v1/rerank", "/v1/models", "/v1/realtime?model=auto"]),
        mode=st.shared(modes, key="request"),
        response_mode=st.shared(modes, key="response"),
        end=st.booleans(),
        subset=st.sampled_from([None, None, ["10.0.0.1:1"], []]),
    ),
    st.builds(request_body, st.sampled_from(BODIES), end=st.booleans()),
    st.builds(request_trailers),
    st.builds(
        lambda headers, end: pb.ProcessingRequest(
            response_headers=pb.HttpHeaders(headers=header_map(headers), end_of_stream=end)
        ),
        st.sampled_from(ANSWERS),
        st.booleans(),
    ),
    st.builds(response_headers, st.just(200), served=st.sampled_from(["10.0.0.2:1", "10.9.9.9:1"])),
    st.builds(response_body, st.sampled_from([b"", b"{}", b'data: {"usage": 1}\n\n']), end=st.booleans()),
    st.builds(response_trailers),
    st.builds(pb.ProcessingRequest),
)
lawful = st.tuples(
    st.builds(request_headers, mode=st.shared(modes, key="request"), response_mode=st.shared(modes, key="response")),
    st.builds(request_body, st.sampled_from(BODIES)),
).map(list)
orders = st.tuples(st.just([]) | lawful, st.lists(messages, max_size=8)).map(lambda parts: parts[0] + parts[1])
turns = st.lists(st.integers(0, 9), max_size=60)
pending = st.lists(st.sampled_from(["done", "next message first", "dropped"]), max_size=4)


@given(orders, turns, pending, st.booleans())
def test_in_any_order_with_any_fault_nothing_leaks_and_each_message_is_answered(
    order: list[pb.ProcessingRequest], turns: list[int], pending: list[str], closes_first: bool
) -> None:
    services, fates = services_with(Faults(iter(turns))), iter(pending)
    with patch("fairlead.extproc.pick.INLINE_BYTES", 200):
        processing = Processing(services)
        stream = processing._stream
        late: list[Coroutine[Any, Any, Iterable[bytes]]] = []
        for message in order:
            before = stream.request_phase, stream.response_phase
            faults_before = services.recorder.stream_failures
            made = list(processing.on(message))
            after = stream.request_phase, stream.response_phase
            later: Any = processing.later()
            if later is not None:
                match next(fates, "done"):
                    case "done":
                        made += finished(later)
                    case "dropped":
                        later.close()
                        break
                    case _:
                        later.send(None)  # it waits
                        late.append(later)
                        continue
            if services.recorder.stream_failures == faults_before:
                assert_lawful(message, before, after)
            assert_answered(message, [as_response(reply) for reply in made], stream)
        if closes_first:
            processing.close()
        for each in late:
            list(finished(each))
        processing.close()
        processing.on(PICK)
        processing.close()
    assert idle(services)


def finished(later: Coroutine[Any, Any, Iterable[bytes]]) -> list[bytes]:
    while True:
        try:
            later.send(None)
        except StopIteration as end:
            return list(end.value)


def assert_lawful(message: pb.ProcessingRequest, before: tuple[str, str], after: tuple[str, str]) -> None:
    """The phases are those of the table, `broken`, or unchanged."""
    kind = message.WhichOneof("request")
    request, response = before
    if "broken" in after or kind is None:
        return
    table: dict[str, Any] = {**REQUEST, **RESPONSE}
    half = 0 if kind in REQUEST else 1
    assert after[half] in table[kind].get(before[half], ()) or after[half] in (before[half], "refused")
    if kind in REQUEST:
        assert after[1] == response
    else:
        assert after[0] == request or (kind == "response_headers" and request in UNSETTLED)


def assert_answered(message: pb.ProcessingRequest, made: list[pb.ProcessingResponse], stream: Any) -> None:
    """As Envoy requires: one reply of the message's kind, or an end of the request; full duplex may be silent."""
    kind = message.WhichOneof("request")
    of = [reply.WhichOneof("response") for reply in made if reply.WhichOneof("response") is not None]
    if kind is None:
        assert not of
    elif kind.startswith("request_"):
        assert of.count("immediate_response") <= 1
        if "immediate_response" in of:
            assert of[-1] == "immediate_response"
        elif stream.request_duplex:
            assert set(of) <= {"request_headers", "request_body", "request_trailers"}
        else:
            assert of == [kind]
    elif kind == "response_body" and stream.response_duplex:
        assert set(of) <= {kind}
    else:
        assert of == [kind]


def idle(services: Services) -> bool:
    loads = all(endpoint.own == endpoint.load == Load() for endpoint in services.router.pool.endpoints)
    return loads and services.held.bytes == 0
