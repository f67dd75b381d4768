"""What counts as a score, and what does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fairlead.cascade.judge import EndpointJudge, FunctionJudge, JudgeError, answer_text, load_function, parse_score
from fairlead.errors import UserError
from tests.cascade.conftest import Endpoint

REQUEST = {"messages": [{"role": "user", "content": "2 + 2?"}]}


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("85", 85),
        (" 85.5\n", 85.5),
        ("Score: 85/100", 85),
        ("**90**", 90),
        ("Final grade is 7 out of 100.", 7),
        ("0", 0),
    ],
)
def test_a_number_is_a_score_with_the_words_that_judges_put_around_it(reply: str, score: float) -> None:
    assert parse_score(reply) == score


@pytest.mark.parametrize(
    "reply", ["", "200", "101/100", "-5", "-5 points off, so 2", "The answer 4 is right.", "eighty", "85 or 90", "NaN"]
)
def test_prose_nothing_and_200_of_100_are_no_score(reply: str) -> None:
    with pytest.raises(JudgeError):
        parse_score(reply)


async def test_a_model_is_shown_request_and_answer_and_its_number_counts(endpoint: Endpoint) -> None:
    seen: list[dict[str, Any]] = []

    async def judge(body: dict[str, Any]) -> str:
        seen.append(body)
        return "77"

    url = await endpoint(judge)
    async with aiohttp.ClientSession() as session:
        assert await EndpointJudge(session, url, "grader").score(REQUEST, "four") == 77
    shown = seen[0]["messages"][1]["content"]
    assert (seen[0]["model"], "2 + 2?" in shown, "four" in shown) == ("grader", True, True)


async def test_a_judge_that_fails_or_is_gone_gives_no_score(endpoint: Endpoint) -> None:
    async def broken(_: dict[str, Any]) -> web.Response:
        return web.Response(status=500)

    async with aiohttp.ClientSession() as session:
        with pytest.raises(JudgeError, match="answered 500"):
            await EndpointJudge(session, await endpoint(broken), "grader").score(REQUEST, "four")
        with pytest.raises(JudgeError, match="cannot be reached"):
            await EndpointJudge(session, "http://127.0.0.1:1", "grader").score(REQUEST, "four")


async def test_functions_may_be_plain_or_async_and_what_they_return_is_checked() -> None:
    def plain(request: Mapping[str, Any], answer: str) -> bool:
        return answer == "four" and "2 + 2" in request["messages"][0]["content"]

    async def asynchronous(_: Mapping[str, Any], __: str) -> float:
        return 42.0

    assert await FunctionJudge(plain).score(REQUEST, "four") == 100
    assert await FunctionJudge(plain).score(REQUEST, "five") == 0
    assert await FunctionJudge(asynchronous).score(REQUEST, "") == 42
    for returned in (200, None, "90", float("nan")):
        constant: Callable[[Mapping[str, Any], str], Any] = partial(_returns, returned)
        with pytest.raises(JudgeError, match="not a number from 0 to 100"):
            await FunctionJudge(constant).score(REQUEST, "")
    with pytest.raises(JudgeError, match="ZeroDivisionError"):
        await FunctionJudge(lambda _, __: 1 / 0).score(REQUEST, "")


def _returns(value: object, _: Mapping[str, Any], __: str) -> object:
    return value


def test_a_function_that_is_not_there_is_reported() -> None:
    assert load_function("operator:eq", Path())({}, "") is False
    for name in ("math:nothing", "no_such_module:f", "math", "math:pi"):
        with pytest.raises(UserError, match="the judge"):
            load_function(name, Path())


def test_the_text_of_an_answer_is_found_in_every_form() -> None:
    assert answer_text(b'{"choices":[{"message":{"content":"hi"}}]}') == "hi"
    assert answer_text(b'{"choices":[{"text":"hi"}]}') == "hi"
    assert answer_text(b'{"choices":[{"message":{"content":[{"type":"text","text":"hi"}]}}]}') == "hi"
    assert "weather" in answer_text(b'{"choices":[{"message":{"content":null,"tool_calls":[{"name":"weather"}]}}]}')
    for body in (b"", b"[]", b'{"choices":[]}', b'{"choices":[{"message":5}]}', b'{"error":{}}'):
        with pytest.raises(JudgeError, match="not a chat completion"):
            answer_text(body)


async def test_a_function_that_hangs_keeps_no_thread_that_others_need() -> None:
    """The sidecar reads its configuration and its lists of engines, and writes its logs, in asyncio's threads."""
    released = threading.Event()
    judge = FunctionJudge(lambda _request, _answer: released.wait(60))
    hung = [asyncio.create_task(judge.score({}, "")) for _ in range(64)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(lambda: "read") == "read"
    finally:
        released.set()
        await asyncio.gather(*hung)
