"""What the router hears of a request that ended."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest

from fairlead.api.prompt import Malformed
from fairlead.core.endpoint import Endpoint
from fairlead.core.observation import Observation
from fairlead.core.policy import Decision, Outcome
from fairlead.core.reported import EngineIdentity, EngineReport
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.pick import read_inline
from fairlead.extproc.reading import Read
from fairlead.extproc.request import HttpRequest
from tests.extproc.world import (
    Clock,
    Conversation,
    chat,
    make_services,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    streamed_headers,
)

USAGE = b'{"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}'


@dataclass
class Heard:
    """A tuner that changes nothing."""

    outcomes: list[tuple[Decision, Outcome]] = field(default_factory=list)

    def observe(self, decision: Decision, outcome: Outcome, decided: int, now_s: float) -> None:  # noqa: ARG002
        self.outcomes.append((decision, outcome))


def conversation(messages_per_second: float = 0.0) -> tuple[Conversation, Heard, Clock]:
    clock, heard = Clock(), Heard()
    services = replace(make_services(messages_per_second=messages_per_second), clock_s=clock)
    services.router.use(services.router.policy, heard)
    return Conversation(services), heard, clock


def test_the_router_hears_once_how_long_a_request_took_from_its_pick() -> None:
    talk, heard, clock = conversation()
    talk.say(request_headers())
    clock.now_s = 1.0
    talk.say(request_body(chat()))
    clock.now_s = 3.5
    talk.say(response_headers(), response_trailers())
    talk.stream.close()
    assert [outcome for _, outcome in heard.outcomes] == [Outcome(200, 2500.0)]
    assert heard.outcomes[0][0].number == 1


def test_of_an_observed_answer_it_hears_the_first_token_and_the_usage() -> None:
    talk, heard, clock = conversation(messages_per_second=100.0)
    talk.say(request_headers(), request_body(chat()), streamed_headers())
    clock.now_s = 0.25
    talk.say(response_body(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))
    clock.now_s = 1.0
    talk.say(response_body(b'data: {"choices":[],"usage":' + USAGE + b"}\n\ndata: [DONE]\n\n", end=True))
    assert [outcome for _, outcome in heard.outcomes] == [Outcome(200, 1000.0, 250.0, 9, 4, 2)]


def observed_over(clock: Clock, talk: Conversation, now_s: float) -> None:
    talk.say(request_headers(), request_body(chat()), streamed_headers())
    clock.now_s = now_s
    talk.say(response_body(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))
    talk.say(response_body(b'data: {"choices":[],"usage":' + USAGE + b"}\n\ndata: [DONE]\n\n", end=True))


@pytest.mark.parametrize("looked_since", [False, True])
def test_an_answer_over_which_the_sidecar_was_suspended_teaches_nothing(looked_since: bool) -> None:
    talk, heard, clock = conversation(messages_per_second=100.0)
    services = talk.services
    services.stalls.look(0.0)
    if looked_since:
        services.stalls.look(60.0)
    observed_over(clock, talk, 60.25)
    assert services.recorder.observations == 0
    assert services.recorder.unlearned == {"cut": 0, "stalled": 1}
    assert services.learner.engines == {}
    assert [outcome.first_token_ms for _, outcome in heard.outcomes] == [None]


def test_an_answer_over_which_its_engine_was_away_teaches_nothing() -> None:
    talk, _, clock = conversation(messages_per_second=100.0)
    for endpoint in talk.services.router.pool.endpoints:
        endpoint.probed(False, 30.0, 1)
        endpoint.probed(True, 60.0, 1)
    observed_over(clock, talk, 60.25)
    assert talk.services.recorder.observations == 0
    assert talk.services.recorder.unlearned == {"cut": 0, "stalled": 1}


def test_an_observed_answer_whose_client_left_is_counted_as_cut() -> None:
    talk, _, _ = conversation(messages_per_second=100.0)
    talk.say(request_headers(), request_body(chat()), streamed_headers())
    talk.say(response_body(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))
    talk.stream.close()
    assert talk.services.recorder.observations == 0
    assert talk.services.recorder.unlearned == {"cut": 1, "stalled": 0}


def test_what_a_stream_says_before_the_engine_has_computed_anything_is_no_first_token() -> None:
    """As vLLM does with the Responses API."""
    talk, heard, clock = conversation(messages_per_second=100.0)
    talk.say(request_headers(), request_body(chat()), streamed_headers())
    clock.now_s = 0.01
    talk.say(response_body(b'event: response.created\ndata: {"type":"response.created"}\n\n'))
    clock.now_s = 0.25
    talk.say(response_body(b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'))
    clock.now_s = 1.0
    talk.say(response_body(b'event: response.completed\ndata: {"response":{"usage":' + USAGE + b"}}\n\n", end=True))
    assert [outcome.first_token_ms for _, outcome in heard.outcomes] == [250.0]


@pytest.mark.parametrize("parts", [[16], [4, 12], [1] * 16], ids=["in one part", "in two", "one by one"])
def test_tokens_that_come_together_with_the_first_are_counted_with_it(
    parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, _, clock = conversation(messages_per_second=100.0)
    seen: list[Observation] = []
    monkeypatch.setattr(talk.services.learner, "observe", lambda each, _: seen.append(each))
    talk.say(request_headers(), request_body(chat()), streamed_headers())
    clock.now_s = 0.5
    for events in parts:
        talk.say(response_body(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * events))
    clock.now_s = 1.0
    for _ in range(16):
        talk.say(response_body(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))
    usage = b'data: {"choices":[],"usage":{"prompt_tokens": 9, "completion_tokens": 32}}\n\n'
    talk.say(response_body(usage, end=True))
    (answer,) = seen
    assert answer.first_token_ms == 500.0
    assert answer.first_tokens == pytest.approx(16, abs=1)


def test_the_first_event_with_text_has_one_token_though_later_ones_have_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with vLLM's `--stream-interval 16`, and where a model's tokens have no text."""
    talk, _, clock = conversation(messages_per_second=100.0)
    seen: list[Observation] = []
    monkeypatch.setattr(talk.services.learner, "observe", lambda each, _: seen.append(each))
    talk.say(request_headers(), request_body(chat()), streamed_headers())
    clock.now_s = 0.5
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    text = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    talk.say(response_body(role + text))
    clock.now_s = 1.0
    talk.say(response_body(text))
    usage = b'data: {"choices":[],"usage":{"prompt_tokens": 9, "completion_tokens": 33}}\n\ndata: [DONE]\n\n'
    talk.say(response_body(usage, end=True))
    assert [each.first_tokens for each in seen] == [1]


@pytest.mark.parametrize(("more", "several"), [({}, False), ({"n": 8}, True)])
def test_an_answer_of_several_texts_is_learned_from_as_such(
    more: dict[str, Any], several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, _, _ = conversation(messages_per_second=100.0)
    seen: list[Observation] = []
    monkeypatch.setattr(talk.services.learner, "observe", lambda each, _: seen.append(each))
    talk.say(request_headers(), request_body(chat(**more)), response_headers())
    talk.say(response_body(b'{"choices":[],"usage":' + USAGE + b"}", end=True))
    assert [each.several for each in seen] == [several]


def test_a_client_that_leaves_before_the_answer_is_heard_of_as_499() -> None:
    talk, heard, clock = conversation()
    talk.say(request_headers(), request_body(chat()))
    clock.now_s = 2.0
    talk.stream.close()
    assert [outcome for _, outcome in heard.outcomes] == [Outcome(499, 2000.0)]


def test_a_request_that_is_not_read_is_heard_of_too() -> None:
    talk, heard, _ = conversation()
    talk.say(request_headers("GET", "/some/page", end=True), response_headers(404, end=True))
    assert [(decision.why, outcome.code) for decision, outcome in heard.outcomes] == [("fallback", 404)]


REFUSAL = b'data: {"error": {"message": "The request queue is full.", "code": 503}}\n\ndata: [DONE]\n\n'


def chosen(talk: Conversation, heard: Heard) -> Endpoint:
    talk.say(request_headers(), request_body(chat()))
    decision = talk.stream.in_flight
    assert decision is not None
    del heard.outcomes[:]
    return talk.endpoints[decision.address]


def test_a_stream_that_is_a_refusal_is_seen_where_the_engines_queue_may_be_full_and_counts_as_503() -> None:
    talk, heard, _ = conversation()
    endpoint = chosen(talk, heard)
    endpoint.identified(EngineIdentity(max_queued_requests=1))
    endpoint.report = EngineReport(waiting_requests=1, stale=False)
    (reply,) = talk.say(streamed_headers())
    assert reply.mode_override.response_body_mode == pb.STREAMED
    talk.say(response_body(REFUSAL, end=True))
    assert [outcome.code for _, outcome in heard.outcomes] == [503]
    assert not endpoint.health.doubtful


def test_a_stream_of_an_engine_with_room_in_its_queue_is_not_looked_at() -> None:
    talk, heard, _ = conversation()
    endpoint = chosen(talk, heard)
    endpoint.identified(EngineIdentity(max_queued_requests=8))
    endpoint.report = EngineReport(waiting_requests=0, stale=False)
    (reply,) = talk.say(streamed_headers())
    assert not reply.HasField("mode_override")


def test_a_refusal_in_an_observed_stream_teaches_nothing_of_the_engines_speed() -> None:
    talk, heard, _ = conversation(messages_per_second=100.0)
    endpoint = chosen(talk, heard)
    talk.say(streamed_headers(), response_body(REFUSAL), response_body(b"", end=True))
    assert [outcome for _, outcome in heard.outcomes] == [Outcome(503, 0.0)]
    assert endpoint.speed == Endpoint(endpoint.spec).speed


def test_observed_answers_show_how_far_expected_first_tokens_can_be_believed() -> None:
    first, _, clock = conversation(messages_per_second=1000.0)
    for _ in range(10):
        talk = Conversation(first.services)
        talk.say(request_headers(), request_body(chat("large")), streamed_headers())
        clock.now_s += 0.25
        talk.say(response_body(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))
        clock.now_s += 1.0
        talk.say(response_body(b"data: [DONE]\n\n", end=True))
    calibration = first.services.calibration
    calibration.settle()
    tenths = calibration.tenths()["large", "first_token"]
    assert {round(tenth.seen_p50_ms) for tenth in tenths} == {250}


def test_the_time_of_a_decision_begins_when_the_body_is_whole_and_reading_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]

    def slowly(request: HttpRequest) -> Read | Malformed | None:
        now_s[0] += 0.02
        return read_inline(request)

    monkeypatch.setattr("fairlead.extproc.request_half.read_inline", slowly)
    services = replace(make_services(), clock_s=lambda: now_s[0])
    Conversation(services).say(request_headers(), request_body(chat("small")))
    services.recorder.settle()
    assert services.recorder.decision_seconds.count == 1
    assert services.recorder.decision_seconds.sum == pytest.approx(0.02)


def test_prompts_that_are_computed_whatever_is_cached_do_not_make_their_engine_look_forgetful() -> None:
    """An evaluation's, by `prompt_logprobs`: the engine has them cached, and says of each that it read nothing."""
    talk, _, clock = conversation(messages_per_second=1e5)
    prompt = "The few shots of an evaluation. " * 500

    def ask(cached_tokens: int, **more: Any) -> None:
        one = Conversation(talk.services)
        body = json.dumps({"model": "small", "prompt": prompt, **more}).encode()
        one.say(request_headers(path="/v1/completions"), request_body(body), response_headers())
        usage = {
            "prompt_tokens": 4000,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }
        one.say(response_body(json.dumps({"usage": usage}).encode(), end=True))
        clock.now_s += 5.0

    for cached_tokens in (0, 3984, 3984):
        ask(cached_tokens)
    for _ in range(10):
        ask(0, prompt_logprobs=1)
    assert {each.value_s for each in talk.services.router.retentions.values()} == {math.inf}


class Api(NamedTuple):
    """An API of one engine, and how its answers tell of tokens."""

    path: str
    asks: Callable[[str], dict[str, Any]]
    usage: Callable[[int, int], dict[str, Any]]  # of prompt and cached tokens


def _chat(text: str) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": text}]}


CHAT = Api(
    "/v1/chat/completions", _chat, lambda prompt, _: {"usage": {"prompt_tokens": prompt, "completion_tokens": 9}}
)
RESPONSES = Api(
    "/v1/responses",
    lambda text: {"model": "small", "input": text},
    lambda prompt, cached: {
        "usage": {"input_tokens": prompt, "output_tokens": 9, "input_tokens_details": {"cached_tokens": cached}}
    },
)
GENERATE = Api(
    "/generate",
    lambda text: {"model": "small", "text": text},
    lambda prompt, cached: {"meta_info": {"prompt_tokens": prompt, "completion_tokens": 9, "cached_tokens": cached}},
)


@pytest.mark.parametrize("other", [RESPONSES, GENERATE])
def test_that_one_api_reports_cached_tokens_says_nothing_of_another(other: Api) -> None:
    """vLLM and SGLang without a flag: their chats never say, and were all taken to have had nothing cached."""
    talk, _, clock = conversation(messages_per_second=1e5)
    services = talk.services

    def ask(api: Api, text: str, cached_tokens: int) -> int:
        one = Conversation(services)
        one.say(request_headers(path=api.path), request_body(json.dumps(api.asks(text)).encode()), response_headers())
        assert one.stream.in_flight is not None
        expected_tokens = one.stream.in_flight.decision.cached_tokens
        answer = {"choices": [], **api.usage(2000, cached_tokens)}
        one.say(response_body(json.dumps(answer).encode(), end=True))
        clock.now_s += 5.0
        return expected_tokens

    users = [f"User {number}. " + "A document that comes again. " * 300 for number in range(4)]
    for text in users:
        ask(CHAT, text, 0)
    for cached_tokens in (0, 1984, 1984):
        ask(other, "Instructions that never change. " * 300, cached_tokens)
    expected = [ask(CHAT, text, 0) for _ in range(3) for text in users]
    assert min(expected) > 1000
    assert {each.value_s for each in services.router.retentions.values()} <= {math.inf}
