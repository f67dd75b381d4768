"""The retry loop for programs that ask through Fairlead: ask until the answer is right, avoiding models that failed.

    from fairlead.client import ask

    body = {"model": "auto", "messages": [{"role": "user", "content": "What is 6 times 7? Digits only."}]}
    answer = ask("http://127.0.0.1:8080", body, correct=lambda text: "42" in text)
    print(answer.text, answer.correct, answer.time_to_correct_answer_ms)

After a wrong answer the model that gave it joins `x-fairlead-attempted-models`, and the same request goes out again,
until an answer is right, attempts are used up, or all models repeat their answers (`Answer.stopped`). All attempts
name one question (`x-fairlead-question-id`), so that a decision log shows which answers were right. Faults (429, 5xx, a
broken body) say nothing about a model: they are waited out and counted apart, but not for long if connections are
refused. `ask` is for threads, `ask_async` for asyncio; both take a base URL or an httpx client of yours. Streams are
not judged.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

import httpx

from fairlead.api import headers as names
from fairlead.api.paths import CHAT_COMPLETIONS

Stopped = Literal["right", "attempts", "alike"]

_BROKEN: Final = (httpx.TransportError, httpx.DecodingError)  # nothing came, or a part, or what cannot be unpacked
_BUSY: Final = frozenset({408, 425, 429})  # the client's request was fine; every 5xx counts as busy too
_PASSING: Final = frozenset({"id", "call_id", "item_id", "logprobs"})  # keys that differ in answers that are alike
_TIMEOUT: Final = httpx.Timeout(600.0, connect=10.0)  # long prompts take minutes; a dead host should not


class RefusedError(Exception):
    """The server will not answer this request if sent again; the text is the server's own message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class UnavailableError(Exception):
    """No answer within the permitted faults; `faults` lists what happened each time."""

    def __init__(self, faults: tuple[Fault, ...], reason: str) -> None:
        super().__init__(f"{reason}; last fault: {faults[-1].cause}")
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Retry:
    """How long to go on: `max_attempts` counts answers, `max_faults` counts failures to get one."""

    max_attempts: int = 10
    max_faults: int = 8
    max_unreached: int = 4  # refused connections in a row, about 1.5 s of them; one that times out counts twice
    stop_when_alike: bool = True  # once every model repeats its wrong answer; False: all attempts, to compare policies
    first_wait_ms: float = 250.0  # doubled at every fault in a row, less a random part
    longest_wait_ms: float = 30_000.0  # a server that asks for more (`retry-after`) is unavailable

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}; write 1 or more")
        if self.max_unreached < 1:
            raise ValueError(f"max_unreached is {self.max_unreached}; write 1 or more")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer: its model and endpoint, the reason for choosing them, and the time from sending to the last byte."""

    model: str
    endpoint: str
    decision: str
    duration_ms: float
    status: int
    correct: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure to get an answer. `status` is None where no response came."""

    cause: str
    status: int | None
    duration_ms: float
    waited_ms: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The last answer, which is the first correct one if any was correct."""

    text: str
    correct: bool
    attempts: tuple[Attempt, ...]
    faults: tuple[Fault, ...]
    response: Mapping[str, Any] = field(repr=False)
    elapsed_ms: float  # wall clock of the whole call, with faults, waits and the checks
    stopped: Stopped  # attempts: `max_attempts` were wrong; alike: every model repeats the wrong answer it gave before

    @property
    def time_to_correct_answer_ms(self) -> float:
        """The attempts' durations added up; where `censored`, a lower bound of the time that would have been needed."""
        return sum(attempt.duration_ms for attempt in self.attempts)

    @property
    def censored(self) -> bool:
        """No attempt was correct (LAAR, section 4: right-censored, at the retry cap or where retries add nothing)."""
        return not self.correct


def ask(
    endpoint: str | httpx.Client,
    body: Mapping[str, Any],
    correct: Callable[[str], bool] | None = None,
    *,
    correct_response: Callable[[Mapping[str, Any]], bool] | None = None,
    path: str = CHAT_COMPLETIONS,
    retry: Retry = Retry(),
    session_id: str | None = None,
    request_id: str | None = None,
) -> Answer:
    """Send `body` to `path` until an answer passes the check, `retry` is used up, or every model has failed as before.

    Give the check as `correct`, on the answer's text, or as `correct_response`, on the parsed JSON. All attempts
    carry one question id, `session_id` and `request_id`. Raises RefusedError for other 4xx, and UnavailableError.
    """
    loop = _Loop(body, _check(correct, correct_response), retry, session_id, request_id)
    with ExitStack() as stack:
        if isinstance(endpoint, str):
            client = stack.enter_context(httpx.Client(base_url=endpoint, timeout=_TIMEOUT))
        else:
            client = endpoint
        path = _path_at(client.base_url, path)
        while True:
            started = time.perf_counter()
            try:
                response: httpx.Response | httpx.RequestError = client.post(
                    path, content=loop.content, headers=loop.headers()
                )
            except _BROKEN as error:
                response = error
            answer = loop.judge(response, _ms_since(started))
            if answer is not None:
                return answer
            time.sleep(loop.wait_ms / 1000)


async def ask_async(
    endpoint: str | httpx.AsyncClient,
    body: Mapping[str, Any],
    correct: Callable[[str], bool] | None = None,
    *,
    correct_response: Callable[[Mapping[str, Any]], bool] | None = None,
    path: str = CHAT_COMPLETIONS,
    retry: Retry = Retry(),
    session_id: str | None = None,
    request_id: str | None = None,
) -> Answer:
    """`ask` for asyncio. The check runs on the event loop: keep it short."""
    loop = _Loop(body, _check(correct, correct_response), retry, session_id, request_id)
    async with AsyncExitStack() as stack:
        if isinstance(endpoint, str):
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=endpoint, timeout=_TIMEOUT))
        else:
            client = endpoint
        path = _path_at(client.base_url, path)
        while True:
            started = time.perf_counter()
            try:
                response: httpx.Response | httpx.RequestError = await client.post(
                    path, content=loop.content, headers=loop.headers()
                )
            except _BROKEN as error:
                response = error
            answer = loop.judge(response, _ms_since(started))
            if answer is not None:
                return answer
            await asyncio.sleep(loop.wait_ms / 1000)


def answer_text(response: Mapping[str, Any]) -> str:
    """The text of a chat completion, completion, response (`/v1/responses`) or Anthropic message; "" if it has none."""
    for choice in _list(response.get("choices"))[:1]:
        message = choice.get("message")
        return _joined(message.get("content") if isinstance(message, dict) else choice.get("text"))
    items = [item for item in _list(response.get("output")) if item.get("type") == "message"]
    if items:
        return "".join(_joined(item.get("content")) for item in items)
    return _joined(response.get("content"))


_Check = Callable[[str, Mapping[str, Any]], bool]


class _Loop:
    """The loop's logic: what to send next and when to stop; its callers only do I/O and sleep."""

    def __init__(
        self, body: Mapping[str, Any], check: _Check, retry: Retry, session_id: str | None, request_id: str | None
    ) -> None:
        if body.get("stream"):
            raise ValueError('"stream" is true; a stream cannot be judged before it ends, so leave it out')
        self.content = json.dumps(body, ensure_ascii=False).encode()
        self.wait_ms = 0.0
        self._headers = {b"content-type": b"application/json"}
        if session_id is not None:
            self._headers[names.SESSION_ID] = session_id.encode()
        if request_id is not None:
            self._headers[names.REQUEST_ID] = request_id.encode()
        self._check = check
        self._retry = retry
        self._attempts: list[Attempt] = []
        self._faults: list[Fault] = []
        self._faults_in_a_row = self._unreached_in_a_row = 0
        self._question_id = uuid.uuid4().hex
        self._repeats_until_alike = 1 if body.get("temperature") == 0 else 2  # sampled answers may repeat by chance
        self._said: dict[str, dict[bytes, int]] = {}  # by model, how often it gave each wrong answer
        self._started = time.perf_counter()

    def headers(self) -> dict[bytes, bytes]:
        """In UTF-8, as the names of models come: httpx would refuse letters beyond ASCII in a `str`."""
        is_last = len(self._attempts) + 1 == self._retry.max_attempts  # the log cannot show whether its answer is right
        question = f"{self._question_id};last" if is_last else self._question_id
        headers = {**self._headers, names.QUESTION_ID: question.encode()}
        attempted = [attempt.model for attempt in self._attempts if attempt.model]
        if attempted:
            headers[names.ATTEMPTED_MODELS] = ", ".join(attempted).encode()
        return headers

    def judge(self, response: httpx.Response | httpx.RequestError, duration_ms: float) -> Answer | None:
        """The final answer, or None to send again after `wait_ms`."""
        self.wait_ms = 0.0
        if isinstance(response, httpx.ConnectError | httpx.ConnectTimeout):
            self._unreached_in_a_row += 1 if isinstance(response, httpx.ConnectError) else 2  # seconds, not at once
        else:
            self._unreached_in_a_row = 0
        if isinstance(response, httpx.RequestError):
            self._fault(str(response) or type(response).__name__, None, duration_ms, None)
            return None
        status = response.status_code
        if status in _BUSY or status >= 500:
            self._fault(f"{status}: {_message(response)}", status, duration_ms, response.headers.get("retry-after"))
            return None
        if not response.is_success:
            raise RefusedError(status, _message(response))
        parsed = _parsed(response)
        if parsed is None:
            self._fault(f"{status} with a body that is not a JSON object", status, duration_ms, None)
            return None
        return self._answer(response, parsed, duration_ms)

    def _answer(self, response: httpx.Response, parsed: dict[str, Any], duration_ms: float) -> Answer | None:
        self._faults_in_a_row = 0
        text = answer_text(parsed)
        attempt = Attempt(
            model=response.headers.get(names.MODEL.decode()) or str(parsed.get("model") or ""),
            endpoint=response.headers.get(names.ENDPOINT.decode(), ""),
            decision=response.headers.get(names.DECISION.decode(), ""),
            duration_ms=duration_ms,
            status=response.status_code,
            correct=bool(self._check(text, parsed)),
        )
        self._attempts.append(attempt)
        stopped: Stopped
        if attempt.correct:
            stopped = "right"
        elif self._retry.stop_when_alike and self._all_failed_alike(attempt.model, parsed):
            stopped = "alike"
        elif len(self._attempts) == self._retry.max_attempts:
            stopped = "attempts"
        else:
            return None
        faults, elapsed_ms = tuple(self._faults), _ms_since(self._started)
        return Answer(text, attempt.correct, tuple(self._attempts), faults, parsed, elapsed_ms, stopped)

    def _all_failed_alike(self, model: str, wrong: Mapping[str, Any]) -> bool:
        """Whether every model asked has now repeated a wrong answer, so that more attempts would add nothing."""
        said = self._said.setdefault(model, {})
        key = _essence(wrong)
        said[key] = said.get(key, 0) + 1
        return all(max(times.values()) > self._repeats_until_alike for times in self._said.values())

    def _fault(self, cause: str, status: int | None, duration_ms: float, retry_after: str | None) -> None:
        asked_ms = _retry_after_ms(retry_after)
        if asked_ms is None:
            longest_ms = min(self._retry.first_wait_ms * 2**self._faults_in_a_row, self._retry.longest_wait_ms)
            self.wait_ms = random.uniform(longest_ms / 2, longest_ms)  # so that many clients do not return at once
        else:
            self.wait_ms = asked_ms
        self._faults_in_a_row += 1
        self._faults.append(Fault(cause, status, duration_ms, self.wait_ms))
        if self._unreached_in_a_row >= self._retry.max_unreached:
            reason = "nothing listens there; is the gateway up, and is this its address?"
            raise UnavailableError(tuple(self._faults), reason)
        if len(self._faults) > self._retry.max_faults:
            raise UnavailableError(tuple(self._faults), f"no answer after {len(self._faults)} faults")
        if self.wait_ms > self._retry.longest_wait_ms:
            raise UnavailableError(tuple(self._faults), f"the server asks to wait {self.wait_ms / 1000:.0f} s")


def _check(text: Callable[[str], bool] | None, response: Callable[[Mapping[str, Any]], bool] | None) -> _Check:
    if text is not None and response is None:
        return lambda answer, _: text(answer)
    if response is not None and text is None:
        return lambda _, parsed: response(parsed)
    raise ValueError("give one check: correct= on the answer's text, or correct_response= on the parsed JSON")


def _essence(response: Mapping[str, Any]) -> bytes:
    """What an answer says, without what differs each time."""
    said = {key: response[key] for key in ("choices", "output", "content") if key in response}
    try:
        return json.dumps(_without_passing(said), sort_keys=True).encode()
    except RecursionError:  # a model that never closes the brackets of a tool's input: taken for like no other
        return uuid.uuid4().bytes


def _without_passing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_passing(item) for key, item in value.items() if key not in _PASSING}
    return [_without_passing(item) for item in value] if isinstance(value, list) else value


def _path_at(base_url: httpx.URL, path: str) -> str:
    """Users of OpenAI's library write the base URL with /v1; both forms must work."""
    return path.removeprefix("/v1") if base_url.path.rstrip("/").endswith("/v1") else path


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


def _parsed(response: httpx.Response) -> dict[str, Any] | None:
    try:
        parsed = response.json()
    except (ValueError, RecursionError):  # not JSON, not even text, or nested without end
        return None
    return parsed if isinstance(parsed, dict) else None


def _message(response: httpx.Response) -> str:
    """The server's own message: OpenAI's error envelope, vLLM's bare `message`, or the text as it came."""
    parsed = _parsed(response) or {}
    error = parsed.get("error", parsed)
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or response.text[:500] or response.reason_phrase)


def _retry_after_ms(value: str | None) -> float | None:
    """Seconds or an HTTP date, as RFC 9110 permits; None if absent or unreadable."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value) * 1000
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # a year or a time zone of twenty digits
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds() * 1000)


def _list(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _joined(content: object) -> str:
    """Text, or a list of text parts."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in _list(content) if isinstance(part.get("text"), str))
