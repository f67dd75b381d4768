"""Cascades through a real Envoy: the client gets the answer that was accepted, and never less than the first one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from fairlead.core.capability import Capability
from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from tests.stack.conftest import Answer, Stack, Start, engine

KEY, RIGHT = "6ab6ea3e-f288-4f33-bad6-7f42bb75b03f", "c0ffee00-1111-4222-8333-444455556666"
OTHER_KEY, WRONG = "0badcafe-1111-4222-8333-444455556666", "feedface-1111-4222-8333-444455556666"
QUESTION = f'"{OTHER_KEY}": "{WRONG}", "{KEY}": "{RIGHT}" Key: {KEY}'
PROCESSOR_TIMEOUT_MS = 1000
HALF = Capability({language: (0.5,) * len(BUCKETS) for language in LANGUAGES})
NEVER = Capability({language: (0.0,) * len(BUCKETS) for language in LANGUAGES})


class Judge:
    """An OpenAI-compatible endpoint that finds the right answer worth 100 and all others 0, until told otherwise."""

    def __init__(self) -> None:
        self.says: str | None = None
        self.hangs = False
        self.asked = asyncio.Event()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.set()
        if self.hangs:
            await asyncio.Event().wait()
        answer = body["messages"][1]["content"].partition("<answer>")[2]
        says = self.says if self.says is not None else "100" if RIGHT in answer else "0"
        message = {"role": "assistant", "content": says}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


@pytest.fixture
async def judge() -> AsyncIterator[Judge]:
    async with judging() as judge:
        yield judge


@asynccontextmanager
async def judging() -> AsyncIterator[Judge]:
    judge = Judge()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", judge.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
    async with AsyncExitStack() as cleanup:
        await runner.setup()
        cleanup.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        judge.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield judge


def routes(judge: Judge, **more: Any) -> dict[str, Any]:
    cascade = {"cascade": ["small", "large"], "thresholds": [50], "judge": {"url": judge.url, "model": "grader"}}
    cascade["judge_timeout_s"] = 60  # the judge shares the test's event loop
    return {"auto": ["small", "large"], "answer": cascade | more}


async def started(stack: Start, judge: Judge, *, small: Capability = NEVER, **more: Any) -> Stack:
    return await stack(engine("small", capability=small), engine("large"), routes=routes(judge, **more))


def numbered(number: int) -> str:
    return f"Question {number}. {QUESTION}"


def question(number: int) -> str:
    """A line of a file of requests."""
    document = {"id": str(number), "messages": [{"role": "user", "content": numbered(number)}], "max_tokens": 64}
    return msgspec.json.encode(document | {"temperature": 0}).decode()


async def asked(pool: Stack, number: int = 0, **more: Any) -> Answer:
    return await pool.chat(numbered(number), model="answer", max_tokens=64, temperature=0, **more)


def text_of(answer: Answer) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


async def passed(pool: Stack, reason: str) -> float:
    return await pool.metric("fairlead_cascade_passed_total", route="answer", reason=reason)


async def test_a_wrong_answer_is_replaced_by_the_larger_models(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge)
    answer = await asked(pool)
    assert (answer.status, text_of(answer)) == (200, RIGHT)
    assert answer.headers["x-fairlead-model"] == "large"
    assert answer.headers["x-fairlead-endpoint"] == pool.engines[1].address
    assert answer.headers["x-fairlead-cascade-stage"] == "2"
    assert answer.headers["x-fairlead-cascade-scores"] == "0"
    assert float(answer.headers["x-fairlead-cascade-added-ms"]) >= 0
    one = (await pool.chat(numbered(0), model="large", max_tokens=64, temperature=0)).json()["usage"]
    both = answer.json()["usage"]
    assert both["prompt_tokens"] == 2 * one["prompt_tokens"]
    assert both["total_tokens"] > one["total_tokens"]
    assert await pool.metric("fairlead_cascade_accepted_total", route="answer", model="large") == 1
    assert await pool.metric("fairlead_attempts_total", model="large") == 2, "the larger model is picked as any is"


async def test_a_right_answer_is_given_as_the_engine_wrote_it(stack: Start, judge: Judge) -> None:
    pool = await stack(engine("small"), engine("large"), routes=routes(judge))
    answer = await asked(pool)
    assert text_of(answer) == RIGHT
    assert (answer.headers["x-fairlead-model"], answer.headers["x-fairlead-cascade-stage"]) == ("small", "1")
    direct = await pool.chat(numbered(0), model="small", max_tokens=64, temperature=0)
    same = ("choices", "model", "object")
    assert {key: answer.json()[key] for key in same} == {key: direct.json()[key] for key in same}
    assert len(answer.body) == int(answer.headers["content-length"])
    assert await pool.metric("fairlead_attempts_total", model="large") == 0


@pytest.mark.parametrize("says", ["It is a good answer.", "", "200"])
async def test_a_judge_without_a_score_costs_nothing_but_the_judgement(stack: Start, judge: Judge, says: str) -> None:
    pool = await started(stack, judge)
    judge.says = says
    answer = await asked(pool)
    assert (answer.status, text_of(answer), answer.headers["x-fairlead-cascade-stage"]) == (200, WRONG, "1")
    assert await passed(pool, "judge") == 1


async def test_a_judge_that_hangs_is_waited_for_as_long_as_the_route_says(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge, judge_timeout_s=0.2)
    judge.hangs = True
    assert text_of(await asked(pool)) == WRONG
    assert await passed(pool, "judge") == 1


async def test_an_answer_is_held_longer_than_envoy_waits_for_other_messages(stack: Start, judge: Judge) -> None:
    pool = await stack(
        engine("small", capability=NEVER),
        engine("large"),
        routes=routes(judge),
        gateway={"processor_timeout_ms": PROCESSOR_TIMEOUT_MS},
    )
    await pool.fault(1, kind="slow", delay_ms=1.3 * PROCESSOR_TIMEOUT_MS)
    assert text_of(await asked(pool)) == RIGHT


async def test_when_the_larger_model_is_down_the_first_answer_is_given(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge)
    await pool.fault(1, kind="error", status=500)
    answer = await asked(pool)
    assert (answer.status, text_of(answer), answer.headers["x-fairlead-cascade-stage"]) == (200, WRONG, "1")
    assert await passed(pool, "stages_down") == 1


async def test_when_the_first_model_is_down_the_next_one_answers(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge)
    await pool.fault(0, kind="down")
    await pool.until(pool.has_ejected_the_first, "the small engine is ejected")
    answer = await asked(pool)
    assert (answer.status, text_of(answer), answer.headers["x-fairlead-cascade-stage"]) == (200, RIGHT, "2")


async def test_at_the_deadline_the_first_answer_is_given(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge, deadline_s=3)  # the judge has said what it thinks long before
    await pool.fault(1, kind="hang")
    answer = await asked(pool)
    assert (answer.status, text_of(answer)) == (200, WRONG)
    assert await passed(pool, "deadline") == 1
    await pool.at_rest()


async def test_a_client_that_leaves_ends_the_larger_models_work(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge)
    await pool.fault(1, kind="hang")
    asking = asyncio.create_task(asked(pool))
    await judge.asked.wait()

    async def escalating() -> bool:
        return await pool.metric("fairlead_inflight_requests", endpoint=pool.engines[1].address) == 1

    await pool.until(escalating, "the larger model is asked")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await pool.at_rest()
    assert await pool.metric("fairlead_cascade_held") == 0


async def test_an_answer_too_large_to_hold_passes_unjudged(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge, max_bytes=1000)
    answer = await pool.chat("hello", model="answer", max_tokens=1000)
    assert (answer.status, len(answer.body) > 1000) == (200, True)
    assert answer.headers["x-fairlead-model"] == "small"
    assert "x-fairlead-cascade-stage" not in answer.headers
    assert await passed(pool, "too_large") == 1
    assert not judge.asked.is_set()


async def test_a_stream_gets_the_accepted_answer(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge)
    answer = await asked(pool, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done = [line.removeprefix(b"data: ") for line in answer.body.strip().split(b"\n\n")]
    assert done == b"[DONE]"
    chunks = [msgspec.json.decode(event) for event in events]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]) == RIGHT
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert answer.headers["x-fairlead-cascade-stage"] == "2"


async def test_a_stream_may_be_left_to_the_first_model(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge, streaming="pass")
    answer = await asked(pool, stream=True)
    assert WRONG[:4].encode() in answer.body
    assert answer.headers["x-fairlead-model"] == "small"
    assert await passed(pool, "unjudgeable") == 1


async def test_where_envoy_cannot_hold_answers_they_pass(stack: Start, judge: Judge) -> None:
    pool = await stack(engine("small", capability=NEVER), engine("large"), routes=routes(judge), mode="full_duplex")
    answer = await asked(pool)
    assert (answer.status, text_of(answer)) == (200, WRONG)
    assert await passed(pool, "full_duplex") == 1


async def test_a_client_cannot_pass_itself_off_as_a_cascade(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge)
    answer = await asked(pool, headers={"x-fairlead-inner": "guess"})
    assert text_of(answer) == RIGHT
    for index in (0, 1):
        seen = {name.lower() for name, _ in (await pool.last_request(index))["headers"]}
        assert "x-fairlead-inner" not in seen, "and no engine learns the secret"


@pytest.mark.parametrize("broken", [b'"\xff"', b"[" * 2000 + b"]" * 2000])
async def test_what_a_judge_cannot_read_is_accepted_unjudged(stack: Start, judge: Judge, broken: bytes) -> None:
    pool = await started(stack, judge)
    body = question(0).encode().replace(b'"id":"0"', b'"model":"answer","user":%b' % broken)
    answer = await pool.ask("POST", "/v1/chat/completions", body)
    assert answer.status < 500
    assert await pool.metric("fairlead_failures_total") == 0
    assert (await asked(pool)).headers["x-fairlead-cascade-stage"] == "2", "and the next request is judged"


async def test_an_engines_error_is_the_clients_unjudged(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge)
    answer = await pool.chat(QUESTION, model="answer", max_tokens=-1)
    assert (answer.status, judge.asked.is_set()) == (400, False)


async def test_new_thresholds_take_effect_without_a_request_lost(stack: Start, judge: Judge) -> None:
    pool = await started(stack, judge)
    answers: list[Answer] = []
    stop = asyncio.Event()

    async def traffic() -> None:
        while not stop.is_set():
            answers.append(await asked(pool))

    running = asyncio.create_task(traffic())

    async def has_begun() -> bool:
        return bool(answers)

    await pool.until(has_begun, "an answer came under the old threshold")
    pool.write(routes=routes(judge, thresholds=[0]))

    async def accepts_all() -> bool:
        return bool(answers) and answers[-1].headers.get("x-fairlead-cascade-stage") == "1"

    await pool.until(accepts_all, "the new threshold is in force")
    stop.set()
    await running
    assert {answer.status for answer in answers} == {200}
    assert "2" in {answer.headers["x-fairlead-cascade-stage"] for answer in answers}


async def test_where_the_first_model_is_bound_to_fail_the_next_one_starts(
    stack: Start, judge: Judge, tmp_path_factory: pytest.TempPathFactory
) -> None:
    models = {
        model: {language: [probability] * len(BUCKETS) for language in LANGUAGES}
        for model, probability in (("small", 0.05), ("large", 0.9))
    }
    path = tmp_path_factory.mktemp("models") / "capability.json"
    path.write_bytes(msgspec.json.encode({"task": "kv-lookup", "buckets": BUCKETS, "models": models}))
    pool = await started(stack, judge, skip_below=0.2)
    assert (await asked(pool)).headers["x-fairlead-cascade-scores"] == "0"
    pool.write(pool=pool.document["pool"] | {"models": {model: {"capability": str(path)} for model in models}})

    async def skips() -> bool:
        return (await asked(pool)).headers["x-fairlead-cascade-scores"] == ""

    await pool.until(skips, "the small model is not asked any more")
    before = await pool.metric("fairlead_attempts_total", model="small")
    assert text_of(await asked(pool)) == RIGHT
    assert await pool.metric("fairlead_attempts_total", model="small") == before


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_a_stream_is_still_one_when_the_sidecar_is_killed_while_it_judges(
    stack: Start, judge: Judge, api: str
) -> None:
    pool = await started(stack, judge)
    judge.hangs = True
    ask: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}]}
    path = "/v1/chat/completions"
    if api == "completions":
        path, ask = "/v1/completions", {"prompt": QUESTION}
    body = msgspec.json.encode({"model": "answer", "stream": True, "max_tokens": 64, **ask})
    asking = asyncio.create_task(pool.ask("POST", path, body))
    await judge.asked.wait()

    pool.stop_sidecar(signal.SIGKILL)
    answer = await asking

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, _, rest = answer.body.partition(b"\n\n")
    assert rest == b"data: [DONE]\n\n"
    chunk = msgspec.json.decode(first.removeprefix(b"data: "))
    (choice,) = chunk["choices"]
    if api == "chat":
        assert (chunk["object"], "message" in choice, choice["delta"]["role"]) == (
            "chat.completion.chunk",
            False,
            "assistant",
        )
    else:
        assert choice["text"]
