"""A held answer on its way up the cascade: judged, and while it scores too low, a larger model is asked.

Larger models are asked through the gateway, so that picking, retries and metrics apply to them too. Whatever fails
here costs the client nothing but the better answer: the best-scored one so far is given.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from itertools import zip_longest
from random import Random
from typing import Any, Final

import aiohttp
import msgspec

from fairlead.cascade.judge import Judge, JudgeError, answer_text, read_at_most
from fairlead.cascade.serving.answers import Answer, as_events, read_answer, with_usage_of_all
from fairlead.cascade.serving.counts import CascadeCounts, Reason
from fairlead.cascade.serving.route import Entry
from fairlead.cascade.serving.samples import SampleFile, Samples
from fairlead.core.splice import replace_top_level

INNER: Final = b"x-fairlead-inner"  # with our secret: no cascade within a cascade
MODEL: Final = "x-fairlead-model"
ENDPOINT: Final = "x-fairlead-endpoint"
DECISION: Final = "x-fairlead-decision"
_HTTP_OK: Final = 200
_MOST_HELD: Final = 256  # requests at once; each keeps its body and the answers so far
_PASSED_ON: Final = ("authorization", "traceparent", "tracestate")


class Settled(msgspec.Struct, frozen=True):
    """What the client gets. `body` is None where it gets the first answer as it is."""

    body: bytes | None
    events: bool  # the body is a stream's
    model: str  # who gave it, where and why there; empty: the first model
    endpoint: str
    decision: str
    stage: int  # of the accepted answer, from 1
    scores: tuple[float, ...]
    added_ms: float


class _Course:
    """One request's way: the answers it had, their scores, and the accepted one."""

    def __init__(self, entry: Entry, first: Answer) -> None:
        self.entry = entry
        self.stage = entry.stage
        self.answers: list[tuple[int, Answer]] = [(entry.stage, first)]
        self.scores: list[float] = []
        self.accepted: tuple[int, Answer] | None = None

    def best(self) -> tuple[int, Answer]:
        """The accepted answer, else the best-scored; of equal ones the later."""
        if self.accepted is not None:
            return self.accepted
        if not self.scores:
            return self.answers[0]
        best = max(range(len(self.scores)), key=lambda index: (self.scores[index], index))
        return self.answers[best]


class Escalation:
    """Owned by the sidecar. `judges` and the routes' thresholds may be replaced at any time."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        gateway_url: str,
        counts: CascadeCounts,
        clock_s: Callable[[], float],
        session_headers: tuple[str, ...] = (),
        tenant_header: str = "",
    ) -> None:
        self.judges: Mapping[str, Judge] = {}  # by route
        self.sample_files: Mapping[str, SampleFile] = {}  # by route
        self.samples = Samples(counts)
        self.gateway_url = gateway_url
        self.secret = secrets.token_hex(16).encode()
        self.session = session
        self._rng = Random()
        self._counts = counts
        self._clock_s = clock_s
        self._session_headers = session_headers
        self._passed_on = (*_PASSED_ON, *([tenant_header] if tenant_header else ()))

    async def close(self) -> None:
        """End what runs beside requests, and the connections."""
        await self.samples.stop()
        await self.session.close()

    async def settle(
        self, entry: Entry, headers: Mapping[bytes, bytes], request_id: bytes, first: bytes, started_s: float
    ) -> Settled:
        """Judge `first`, the first model's answer, and go on from there. Only cancellation is raised."""
        route, counts, held_s = entry.route, self._counts, self._clock_s()
        answer = read_answer(first)
        if answer is None:
            counts.passed_for(route.name, "unreadable")
            return Settled(None, False, "", "", "", entry.stage + 1, (), 0.0)
        course = _Course(entry, answer)
        if counts.held >= _MOST_HELD:
            counts.passed_for(route.name, "busy")
        else:
            counts.held += 1
            try:
                async with asyncio.timeout(max(0.0, route.deadline_s - (held_s - started_s))):
                    reason = await self._climb(course, self._inner_headers(headers, request_id))
            except TimeoutError:
                reason = "deadline"
            finally:
                counts.held -= 1
            if reason is not None:
                counts.passed_for(route.name, reason)
        added_s = self._clock_s() - held_s
        counts.accept(route.name, route.models[course.best()[0]], added_s)
        if route.sampled_share and self._rng.random() < route.sampled_share:
            self._sample(course, self._inner_headers(headers, request_id))
        return _settled(course, added_s * 1000)

    async def _climb(self, course: _Course, headers: Mapping[str, str]) -> Reason | None:
        """Why it ended without a sufficient score; None if the score sufficed, or the last model answered."""
        route = course.entry.route
        while True:
            stage, answer = course.answers[-1]
            course.accepted = stage, answer
            if stage == len(route.models) - 1:
                return None
            if answer.has_tool_calls and not route.judge_tool_calls:
                return "tool_calls"
            try:
                score = await self._score(course.entry, answer)
            except JudgeError:
                return "judge"
            course.scores.append(score)
            self._counts.scored(route.models[stage], score)
            if score >= route.thresholds[stage]:
                return None
            course.accepted = None
            used_tokens = sum(each.tokens for _, each in course.answers)
            if route.most_tokens is not None and used_tokens >= route.most_tokens:
                return "tokens"
            following = await self._ask_from(stage + 1, course.entry, headers)
            if following is None:
                return "stages_down"
            course.answers.append(following)

    async def _score(self, entry: Entry, answer: Answer) -> float:
        """Raises JudgeError."""
        judge = self.judges.get(entry.route.name)
        if judge is None:  # the route was taken out of the configuration while the request was on its way
            raise JudgeError("the route has no judge any more")
        try:
            request = msgspec.json.decode(entry.body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise JudgeError("the request cannot be read in full") from None
        try:
            async with asyncio.timeout(entry.route.judge_timeout_s):
                return await judge.score(request, answer_text(answer.body))
        except TimeoutError:  # this one's own: that of the whole request arrives as a cancellation
            raise JudgeError("the judge took too long") from None

    def _sample(self, course: _Course, headers: Mapping[str, str]) -> None:
        """Once the client has its answer, the models that were not asked are, and what was not judged is."""
        entry = course.entry
        file = self.sample_files.get(entry.route.name)
        if file is None:
            return
        known: dict[str, tuple[Answer, float | None]] = {}
        for (stage, answer), scored in zip_longest(course.answers, course.scores):
            known[entry.route.models[stage]] = answer, scored

        async def ask(model: str) -> Answer | None:
            return await self._ask(entry, model, headers)

        async def score(answer: Answer) -> float:
            return await self._score(entry, answer)

        self.samples.take(entry, file, known, ask, score)

    async def _ask_from(self, stage: int, entry: Entry, headers: Mapping[str, str]) -> tuple[int, Answer] | None:
        """The answer of the first model from `stage` on that gives one."""
        for index in range(stage, len(entry.route.models)):
            answer = await self._ask(entry, entry.route.models[index], headers)
            if answer is not None:
                return index, answer
        return None

    async def _ask(self, entry: Entry, model: str, headers: Mapping[str, str]) -> Answer | None:
        body = body_for(entry, model)
        if body is None:
            return None
        own = {name: f"{value}/{model}" for name, value in headers.items() if name in self._session_headers}
        try:
            async with self.session.post(
                self.gateway_url + entry.path, data=body, headers={**headers, **own}, allow_redirects=False
            ) as response:
                if response.status != _HTTP_OK:
                    return None
                answer = await read_at_most(response, entry.route.most_bytes)
                if answer is None:
                    return None
                said = response.headers
                return read_answer(answer, said.get(MODEL, model), said.get(ENDPOINT, ""), said.get(DECISION, ""))
        except (aiohttp.ClientError, OSError, ValueError):  # the last for a client's header that cannot be sent on
            return None

    def _inner_headers(self, headers: Mapping[bytes, bytes], request_id: bytes) -> dict[str, str]:
        """What a larger model's request says of its sender. Its session is its own: it lives on another engine."""
        inner = {"content-type": "application/json", INNER.decode(): self.secret.decode()}
        for name in (*self._passed_on, *self._session_headers):
            value = headers.get(name.encode())
            if value:
                inner[name] = value.decode("latin-1")
        return inner | {"x-request-id": request_id.decode("latin-1")}


def body_for(entry: Entry, model: str) -> bytes | None:
    """The client's request as it is asked of one model: in one piece. None where a key stands twice in it."""
    body = replace_top_level(entry.body, "model", msgspec.json.encode(model))
    return body if body is None or not entry.streams else in_one_piece(body)


def in_one_piece(body: bytes) -> bytes | None:
    """A streaming request as one that does not stream; engines refuse `stream_options` without a stream."""
    changed = replace_top_level(body, "stream", b"false")
    if changed is not None and b'"stream_options"' in changed:
        return replace_top_level(changed, "stream_options", b"null") or changed
    return changed


def _settled(course: _Course, added_ms: float) -> Settled:
    stage, accepted = course.best()
    others = [answer for _, answer in course.answers if answer is not accepted]
    answer = with_usage_of_all(accepted, others) if others else accepted
    body = None if answer is course.answers[0][1] else answer.body
    if course.entry.streams:
        body = as_events(answer, with_usage=course.entry.with_usage)
    return Settled(
        body=body,
        events=course.entry.streams,
        model=answer.model,
        endpoint=answer.endpoint,
        decision=answer.decision,
        stage=stage + 1,
        scores=tuple(course.scores),
        added_ms=added_ms,
    )
