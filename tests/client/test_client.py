from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from fairlead.client import Answer, RefusedError, Retry, UnavailableError, answer_text, ask, ask_async
from tests.client.conftest import Reply, Script

BODY = {"model": "auto", "messages": [{"role": "user", "content": "六かける七は？"}], "temperature": 0}
QUICK = Retry(first_wait_ms=1)


def right(text: str) -> bool:
    return text == "42"


def test_a_correct_first_answer_is_returned_and_names_no_attempted_model(server: Script) -> None:
    server.answers(("42", "small"))
    answer = ask(server.url, BODY, right)
    assert (answer.text, answer.correct, answer.censored) == ("42", True, False)
    assert server.attempted() == [None]
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].body == BODY


def test_each_wrong_answer_adds_its_model_in_order_and_keeps_repeats(server: Script) -> None:
    server.answers(("41", "small"), ("40", "large"), ("41", "small"), ("42", "large"))
    answer = ask(server.url, BODY, right)
    assert server.attempted() == [None, "small", "small, large", "small, large, small"]
    assert [attempt.correct for attempt in answer.attempts] == [False, False, False, True]


def test_fairleads_headers_name_the_model_the_endpoint_and_the_decision(server: Script) -> None:
    result = {"x_fairlead_model": "granite", "x_fairlead_endpoint": "10.0.0.1:8000", "x_fairlead_decision": "cost"}
    server.answers(("41", "/weights/granite"), ("42", "/weights/granite"), **result)
    answer = ask(server.url, BODY, right)
    last = answer.attempts[-1]
    assert (last.model, last.endpoint, last.decision, last.status) == ("granite", "10.0.0.1:8000", "cost", 200)
    assert server.attempted() == [None, "granite"]


def test_a_models_name_may_have_letters_beyond_ascii(server: Script) -> None:
    server.answers(("41", "modèle"), ("42", "small"))
    assert ask(server.url, BODY, right, session_id="séance").correct
    assert server.asked[1].headers["x-fairlead-attempted-models"].encode("latin-1") == "modèle".encode()


def test_after_max_attempts_the_last_answer_comes_back_censored(server: Script) -> None:
    server.answers(("1", "a"), ("2", "b"), ("3", "c"), ("42", "d"))
    answer = ask(server.url, BODY, right, retry=Retry(max_attempts=3))
    assert (answer.text, answer.correct, answer.censored, len(server.asked)) == ("3", False, True, 3)


def test_time_to_correct_answer_is_the_sum_of_the_attempts_and_leaves_faults_out(server: Script) -> None:
    server.answers(("41", "small")).replies(Reply(503, headers={"retry-after": "0"})).answers(("42", "large"))
    answer = ask(server.url, BODY, right)
    assert answer.time_to_correct_answer_ms == sum(attempt.duration_ms for attempt in answer.attempts)
    assert len(answer.attempts) == 2
    assert answer.elapsed_ms >= answer.time_to_correct_answer_ms + answer.faults[0].duration_ms


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_or_broken_server_is_asked_again_and_no_model_is_blamed(server: Script, status: int) -> None:
    server.replies(Reply(status, b'{"error": {"message": "full"}}')).answers(("42", "small"))
    answer = ask(server.url, BODY, right, retry=QUICK)
    assert server.attempted() == [None, None]
    assert [(fault.status, fault.cause) for fault in answer.faults] == [(status, f"{status}: full")]


def test_a_connection_that_breaks_is_a_fault_and_not_an_attempt(server: Script) -> None:
    server.replies(Reply(hang_up=True)).answers(("42", "small"))
    answer = ask(server.url, BODY, right, retry=QUICK)
    assert [fault.status for fault in answer.faults] == [None]
    assert len(answer.attempts) == 1


def test_a_body_that_is_not_json_is_a_fault(server: Script) -> None:
    server.replies(Reply(200, b"<html>proxy</html>")).answers(("42", "small"))
    assert ask(server.url, BODY, right, retry=QUICK).faults[0].cause == "200 with a body that is not a JSON object"


def test_a_body_that_cannot_be_unpacked_or_is_nested_without_end_is_a_fault(server: Script) -> None:
    packed = Reply(body=b"{}", headers={"content-encoding": "gzip"})
    server.replies(packed, Reply(body=b'{"choices": ' + b"[" * 100_000)).answers(("42", "small"))
    assert len(ask(server.url, BODY, right, retry=QUICK).faults) == 2


async def test_the_async_loop_takes_what_cannot_be_unpacked_for_a_fault(server: Script) -> None:
    server.replies(Reply(body=b"{}", headers={"content-encoding": "gzip"})).answers(("42", "small"))
    assert len((await ask_async(server.url, BODY, right, retry=QUICK)).faults) == 1


def test_an_answer_nested_too_deep_to_be_compared_is_like_no_other(server: Script) -> None:
    nested = b'{"content": [{"type": "tool_use", "input": ' + b"[" * 600 + b"]" * 600 + b"}]}"
    server.replies(Reply(body=nested))
    assert ask(server.url, BODY, right, retry=Retry(max_attempts=4)).stopped == "attempts"


@pytest.mark.parametrize("wait", ["1 Jan 2024 00:00:00 +99999999999999999999", "1 Jan 99999999999999999999 00:00"])
def test_a_retry_after_that_is_no_time_counts_as_none(server: Script, wait: str) -> None:
    server.replies(Reply(503, headers={"retry-after": wait})).answers(("42", "small"))
    assert ask(server.url, BODY, right, retry=QUICK).correct


def test_faults_end_in_an_error_that_says_what_happened_last(server: Script) -> None:
    server.replies(Reply(503, b'{"error": {"message": "no endpoint"}}'))
    with pytest.raises(UnavailableError, match="no answer after 3 faults; last fault: 503: no endpoint") as caught:
        ask(server.url, BODY, right, retry=Retry(max_faults=2, first_wait_ms=1))
    assert len(caught.value.faults) == len(server.asked) == 3


def test_the_servers_retry_after_is_the_wait(server: Script) -> None:
    server.replies(Reply(429, headers={"retry-after": "0"})).answers(("42", "small"))
    answer = ask(server.url, BODY, right, retry=Retry(first_wait_ms=20_000))
    assert [fault.waited_ms for fault in answer.faults] == [0]


def test_a_retry_after_date_in_the_past_means_now(server: Script) -> None:
    past = format_datetime(datetime.now(UTC) - timedelta(minutes=1), usegmt=True)
    server.replies(Reply(503, headers={"retry-after": past})).answers(("42", "small"))
    assert ask(server.url, BODY, right, retry=Retry(first_wait_ms=20_000)).faults[0].waited_ms == 0


def test_a_server_that_asks_for_more_than_the_longest_wait_is_unavailable_at_once(server: Script) -> None:
    server.replies(Reply(429, headers={"retry-after": "3600"}))
    with pytest.raises(UnavailableError, match="asks to wait 3600 s"):
        ask(server.url, BODY, right)
    assert len(server.asked) == 1


def test_waits_without_retry_after_grow_and_stay_under_their_bound(server: Script) -> None:
    server.replies(*[Reply(503)] * 4).answers(("42", "small"))
    faults = ask(server.url, BODY, right, retry=Retry(first_wait_ms=1, longest_wait_ms=4)).faults
    assert all(low <= fault.waited_ms <= 2 * low for fault, low in zip(faults, (0.5, 1, 2, 2), strict=True))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no model \\"x\\"", "type": "invalid_request_error"}}', '404: no model "x"'),
        (b'{"message": "too long", "code": 400}', "404: too long"),
        (b'{"error": "nope"}', "404: nope"),
        (b"not here", "404: not here"),
    ],
)
def test_a_refused_request_raises_the_servers_own_message(server: Script, body: bytes, message: str) -> None:
    server.replies(Reply(404, body))
    with pytest.raises(RefusedError) as caught:
        ask(server.url, BODY, right)
    assert str(caught.value) == message
    assert caught.value.status == 404
    assert len(server.asked) == 1


def test_session_and_request_id_go_with_every_attempt(server: Script) -> None:
    server.answers(("41", "small"), ("42", "large"))
    ask(server.url, BODY, right, session_id="s-1", request_id="r-1")
    assert [(a.headers["x-session-id"], a.headers["x-request-id"]) for a in server.asked] == [("s-1", "r-1")] * 2


def test_the_check_may_look_at_the_whole_response(server: Script) -> None:
    server.answers(("42", "small"), ("42", "large"))

    def from_large(response: Mapping[str, Any]) -> bool:
        return bool(response["model"] == "large")

    assert ask(server.url, BODY, correct_response=from_large).attempts[-1].model == "large"


def test_exactly_one_check_is_needed(server: Script) -> None:
    with pytest.raises(ValueError, match="give one check"):
        ask(server.url, BODY)
    with pytest.raises(ValueError, match="give one check"):
        ask(server.url, BODY, right, correct_response=lambda _: True)


def test_a_stream_is_refused_before_anything_is_sent(server: Script) -> None:
    with pytest.raises(ValueError, match="stream"):
        ask(server.url, {**BODY, "stream": True}, right)
    assert server.asked == []


def test_a_callers_client_is_used_and_left_open_and_its_v1_is_not_doubled(server: Script) -> None:
    server.answers(("42", "small"))
    with httpx.Client(base_url=f"{server.url}/v1/", headers={"authorization": "Bearer k"}) as client:
        ask(client, BODY, right)
        ask(client, BODY, right)
    assert [asked.path for asked in server.asked] == ["/v1/chat/completions"] * 2
    assert server.asked[0].headers["authorization"] == "Bearer k"


async def test_the_async_loop_behaves_the_same(server: Script) -> None:
    server.replies(Reply(500), Reply(hang_up=True)).answers(("41", "small"), ("42", "large"))
    answer = await ask_async(server.url, BODY, right, retry=QUICK, session_id="s")
    assert isinstance(answer, Answer)
    assert (answer.correct, len(answer.attempts), len(answer.faults)) == (True, 2, 2)
    assert server.attempted() == [None, None, None, "small"]


async def test_the_async_loop_takes_a_callers_client(server: Script) -> None:
    server.answers(("42", "small"))
    async with httpx.AsyncClient(base_url=server.url) as client:
        answer = await ask_async(client, BODY, correct_response=lambda response: response["model"] == "small")
    assert answer.correct


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ('{"choices": [{"message": {"content": "a"}}]}', "a"),
        (
            '{"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}]}',
            "ab",
        ),
        ('{"choices": [{"text": "a"}]}', "a"),
        ('{"choices": [{"message": {"content": null, "tool_calls": []}}]}', ""),
        ('{"output": [{"type": "reasoning"}, {"type": "message", "content": [{"text": "a"}]}]}', "a"),
        ('{"content": [{"type": "text", "text": "a"}]}', "a"),
        ('{"object": "list"}', ""),
    ],
)
def test_the_text_is_found_in_each_form_of_answer(response: str, text: str) -> None:
    assert answer_text(json.loads(response)) == text


def test_a_limit_of_no_attempts_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        Retry(max_attempts=0)


SAMPLED = {**BODY, "temperature": 0.7}


def test_at_temperature_0_it_stops_when_every_model_has_failed_as_before(server: Script) -> None:
    server.answers(("41", "small"), ("40", "large"), ("41", "small"), ("40", "large"), ("42", "never"))
    answer = ask(server.url, BODY, right)
    assert (answer.stopped, answer.censored, len(server.asked)) == ("alike", True, 4)


def test_one_model_that_says_something_new_is_a_reason_to_go_on(server: Script) -> None:
    server.answers(("41", "small"), ("40", "large"), ("41", "small"), ("39", "large"), ("42", "large"))
    answer = ask(server.url, BODY, right)
    assert (answer.stopped, len(server.asked)) == ("right", 5)


def test_a_sampled_answer_may_come_twice_by_chance(server: Script) -> None:
    server.answers(*[("41", "small"), ("40", "large")] * 9)
    assert (ask(server.url, SAMPLED, right).stopped, len(server.asked)) == ("alike", 6)


def test_attempts_that_are_used_up_are_reported(server: Script) -> None:
    server.answers(*[(str(number), "small") for number in range(20)])
    answer = ask(server.url, BODY, right, retry=Retry(max_attempts=3))
    assert (answer.stopped, len(server.asked)) == ("attempts", 3)


def test_a_comparison_of_policies_goes_on_to_the_last_attempt(server: Script) -> None:
    server.answers(*[("41", "small")] * 9)
    answer = ask(server.url, BODY, right, retry=Retry(max_attempts=5, stop_when_alike=False))
    assert (answer.stopped, len(server.asked)) == ("attempts", 5)


def test_tool_calls_that_differ_in_their_ids_are_alike(server: Script) -> None:
    for number in range(9):
        call = {"id": f"call-{number}", "function": {"name": "look", "arguments": "{}"}}
        body = {"id": str(number), "model": "m", "created": number, "choices": [{"message": {"tool_calls": [call]}}]}
        server.replies(Reply(body=json.dumps(body).encode()))
    answer = ask(server.url, BODY, correct_response=lambda _: False)
    assert (answer.stopped, len(server.asked)) == ("alike", 2)


def test_all_attempts_name_one_question_and_the_last_that_is_permitted_says_so(server: Script) -> None:
    server.answers(("1", "a"), ("2", "b")).replies(Reply(503, headers={"retry-after": "0"})).answers(("3", "c"))
    ask(server.url, BODY, right, retry=Retry(max_attempts=3), session_id="s")
    ask(server.url, BODY, right, retry=Retry(max_attempts=1))
    ids = [asked.headers["x-fairlead-question-id"] for asked in server.asked]
    question = ids[0]
    assert ids[:4] == [question, question, f"{question};last", f"{question};last"]
    assert ids[4].endswith(";last")
    assert not ids[4].startswith(question)


def test_where_nobody_listens_it_ends_within_seconds_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s: list[float] = []
    monkeypatch.setattr("fairlead.client.time.sleep", slept_s.append)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(
        UnavailableError, match="nothing listens there; is the gateway up, and is this its addr"
    ) as caught:
        ask(f"http://127.0.0.1:{port}", BODY, right)
    assert 0 < sum(slept_s) < 10
    assert len(caught.value.faults) == 4


async def test_the_async_loop_ends_as_early() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnavailableError, match="nothing listens there"):
        await ask_async(f"http://127.0.0.1:{port}", BODY, right)
