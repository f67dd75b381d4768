"""Escalation of a held answer: it is judged, and while the score is too low, the next larger model is asked.

Larger models are asked through the gateway, so that picking, retries and metrics apply to them too. If anything fails
here, the client still gets an answer: the one with the best score so far.
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

from fairlead.api import headers as names
from fairlead.api.answers import Answer, as_events, read_answer, with_usage_of_all
from fairlead.api.edits import edits
from fairlead.api.spans import object_spans, spliced
from fairlead.cascade.counts import CascadeCounts, Reason
from fairlead.cascade.judge import Judge, JudgeError, answer_text, read_at_most
from fairlead.cascade.route import Entry
from fairlead.cascade.samples import SampleFile, Samples
from fairlead.core.trace import Part, Trace

MODEL: Final = names.MODEL.decode()
ENDPOINT: Final = names.ENDPOINT.decode()
DECISION: Final = names.DECISION.decode()
_HTTP_OK: Final = 200
_MOST_HELD: Final = 256  # requests held at the same time; each keeps its body and its answers so far
PASSED_ON: Final = ("authorization", "traceparent", "tracestate")


class Settled(msgspec.Struct, frozen=True):
    """What the client gets. `body` is None if the first answer goes out unchanged."""

    body: bytes | None
    events: bool  # the body is a stream of events
    model: str  # with endpoint and decision; empty if the first model's answer is used
    endpoint: str
    decision: str
    stage: int  # stage of the accepted answer, from 1
    scores: tuple[float, ...]
    added_ms: float


class _Course:
    """One request's course through the cascade: its answers, their scores, and the accepted one."""

    def __init__(self, entry: Entry, first: Answer, trace: Trace | None) -> None:
        self.entry = entry
        self.trace = trace
        self.stage = entry.stage
        self.answers: list[tuple[int, Answer]] = [(entry.stage, first)]
        self.scores: list[float] = []
        self.accepted: tuple[int, Answer] | None = None

    def best(self) -> tuple[int, Answer]:
        """The accepted answer, else the one with the best score; on a tie the later one."""
        if self.accepted is not None:
            return self.accepted
        if not self.scores:
            return self.answers[0]
        best = max(range(len(self.scores)), key=lambda index: (self.scores[index], index))
        return self.answers[best]


class Escalation:
    """Owned by the sidecar. `judges`, `passed_on` and the routes may be replaced at any time.

    Call `open` on the event loop before use, and `close` at the end.
    """

    session: aiohttp.ClientSession

    def __init__(
        self,
        gateway_url: str,
        counts: CascadeCounts,
        clock_s: Callable[[], float],
        session_headers: tuple[str, ...] = (),
        passed_on: tuple[str, ...] = (),
    ) -> None:
        self.judges: Mapping[str, Judge] = {}  # by route
        self.sample_files: Mapping[str, SampleFile] = {}  # by route
        self.samples = Samples(counts)
        self.gateway_url = gateway_url
        self.secret = secrets.token_hex(16).encode()
        self._rng = Random()
        self.counts = counts
        self._clock_s = clock_s
        self._session_headers = session_headers
        self.passed_on = passed_on  # besides PASSED_ON and the session's

    async def open(self) -> None:
        """Make the HTTP session, which needs a running event loop."""
        connector = aiohttp.TCPConnector(limit=0)  # `_MOST_HELD` and the samples bound how many there are
        timeout = aiohttp.ClientTimeout(total=None)
        self.session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            headers={"accept-encoding": "identity"},  # compressed answers are not read
            cookie_jar=aiohttp.DummyCookieJar(),  # one client's are not another's
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Stop background tasks and close the connections."""
        await self.samples.stop()
        await self.session.close()

    async def settle(
        self,
        entry: Entry,
        headers: Mapping[bytes, bytes],
        request_id: bytes,
        first: bytes,
        started_s: float,
        trace: Trace | None = None,
    ) -> Settled:
        """Judge `first`, the first model's answer, and escalate as needed. Raises nothing but cancellation."""
        route, counts, held_s = entry.route, self.counts, self._clock_s()
        answer = read_answer(first)
        if answer is None:
            counts.passed_for(route.name, "unreadable")
            return Settled(None, False, "", "", "", entry.stage + 1, (), 0.0)
        course = _Course(entry, answer, trace)
        inner = self._inner_headers(headers, request_id, trace)
        if counts.held >= _MOST_HELD:
            counts.passed_for(route.name, "busy")
        else:
            counts.held += 1
            try:
                async with asyncio.timeout(max(0.0, route.deadline_s - (held_s - started_s))):
                    reason = await self._climb(course, inner)
            except TimeoutError:
                reason = "deadline"
            finally:
                counts.held -= 1
            if reason is not None:
                counts.passed_for(route.name, reason)
        added_s = self._clock_s() - held_s
        counts.accept(route.name, route.models[course.best()[0]], added_s)
        if route.sampled_share and self._rng.random() < route.sampled_share:
            self._sample(course, inner)
        return _settled(course, added_s * 1000)

    async def _climb(self, course: _Course, headers: Mapping[str, str]) -> Reason | None:
        """Escalate; the reason for ending without a sufficient score.

        None if it sufficed or the last model answered.
        """
        route = course.entry.route
        while True:
            stage, answer = course.answers[-1]
            course.accepted = stage, answer
            if stage == len(route.models) - 1:
                return None
            if answer.has_tool_calls and not route.judge_tool_calls:
                return "tool_calls"
            began_s = self._clock_s()
            try:
                score = await self._score(course.entry, answer)
            except JudgeError:
                self._note(course, "fairlead.judge", began_s, route.models[stage], error="judge")
                return "judge"
            self._note(course, "fairlead.judge", began_s, route.models[stage], score=score)
            course.scores.append(score)
            self.counts.scored(route.models[stage], score)
            if score >= route.thresholds[stage]:
                return None
            course.accepted = None
            used_tokens = sum(each.tokens for _, each in course.answers)
            if route.most_tokens is not None and used_tokens >= route.most_tokens:
                return "tokens"
            began_s = self._clock_s()
            following = await self._ask_from(stage + 1, course.entry, headers)
            if following is None:
                self._note(course, "fairlead.stage", began_s, route.models[-1], error="stages_down")
                return "stages_down"
            self._note(course, "fairlead.stage", began_s, route.models[following[0]])
            course.answers.append(following)

    def _note(
        self, course: _Course, name: str, began_s: float, model: str, score: float | None = None, error: str = ""
    ) -> None:
        if course.trace is not None:
            shown = {"gen_ai.response.model": model, "gen_ai.evaluation.score.value": score}
            course.trace.add(Part(name, began_s, self._clock_s(), shown, error))

    async def _score(self, entry: Entry, answer: Answer) -> float:
        """Raises JudgeError."""
        judge = self.judges.get(entry.route.name)
        if judge is None:  # the route was removed from the configuration during the request
            raise JudgeError("the route has no judge any more")
        try:
            request = msgspec.json.decode(entry.body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise JudgeError("the request cannot be read in full") from None
        try:
            async with asyncio.timeout(entry.route.judge_timeout_s):
                return await judge.score(request, answer_text(answer.body))
        except TimeoutError:  # the judge's own limit; the request's deadline arrives as a cancellation
            raise JudgeError("the judge took too long") from None

    def _sample(self, course: _Course, headers: Mapping[str, str]) -> None:
        """After the client has its answer, ask the remaining models and judge the remaining answers."""
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
        """The first answer from the models of `stage` and above, asked in turn."""
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
        except (aiohttp.ClientError, OSError, ValueError):  # ValueError: a client's header that cannot be forwarded
            return None

    def _inner_headers(self, headers: Mapping[bytes, bytes], request_id: bytes, trace: Trace | None) -> dict[str, str]:
        """Headers of the request to a larger model. Its session id differs, because it is bound to another engine."""
        inner = {"content-type": "application/json", names.INNER.decode(): self.secret.decode()}
        for name in (*PASSED_ON, *self.passed_on, *self._session_headers):
            value = headers.get(name.encode())
            if value:
                inner[name] = value.decode(errors="replace")  # UTF-8, as aiohttp writes it
        if trace is not None and trace.traceparent:
            inner["traceparent"] = trace.traceparent  # below the client's request in its trace
        return inner | {names.REQUEST_ID.decode(): request_id.decode(errors="replace")}


def body_for(entry: Entry, model: str) -> bytes | None:
    """The client's request for one model, not streamed. None if a key occurs twice in it."""
    spans = object_spans(entry.body) if entry.spans is None else entry.spans
    if spans is None or "model" not in spans:
        return None
    return spliced(entry.body, edits(spans, model, one_piece=entry.streams))


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
