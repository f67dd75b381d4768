"""A log read as attempts: what is known of right and wrong, and what is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import httpx
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.client import Retry, ask
from fairlead.core.policy import Ended
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.decision_log.columns import Anonymous
from fairlead.decision_log.files import SCHEMA
from fairlead.policies import build_policy
from fairlead.tools.fit.judged import Judged, judged
from tests.core.world import make_endpoint
from tests.decision_log.world import decisions
from tests.extproc.world import (
    Conversation,
    destination,
    request_body,
    request_headers,
    response_headers,
    response_trailers,
    services_around,
)

TRUTH: Final = {"small": 0.41, "medium": 0.46, "large": 0.40}
QUESTIONS: Final = 500
Labels = list[tuple[str, bool]]


def known(*rows: dict[str, Any], checked: bool = False) -> tuple[Labels, int]:
    found = judged(decisions(*rows), checked=checked)
    return list(found.attempts.select("model", "correct").iter_rows()), found.unknown


def named(question: str = "q", *, last: bool = False, **row: Any) -> dict[str, Any]:
    return {"question": question, "last": last} | row


# ---- what one question shows ----------------------------------------------------------------------------------------


def test_a_question_that_is_answered_right_at_once_counts() -> None:
    assert known(named()) == ([("small", True)], 0)


def test_an_answer_was_wrong_when_its_question_came_again_with_its_model_among_the_attempted() -> None:
    assert known(named(), named(model="large", attempted=["small"])) == ([("small", False), ("large", True)], 0)


def test_of_a_client_that_names_no_question_nothing_is_known() -> None:
    assert known({}, {"model": "large", "attempted": ["small"]}) == ([], 2)


def test_of_a_further_try_of_the_same_model_nothing_is_known() -> None:
    assert known(named(), named(attempted=["small"])) == ([("small", False)], 1)


def test_of_the_last_attempt_that_a_client_permits_itself_nothing_is_known() -> None:
    assert known(named(last=True)) == ([], 1)
    assert known(named(), named(model="large", attempted=["small"], last=True)) == ([("small", False)], 1)


def test_an_attempt_that_failed_still_shows_that_the_answer_before_it_was_wrong() -> None:
    assert known(named(), named(model="large", attempted=["small"], code=503)) == ([("small", False)], 0)


def test_an_attempt_that_was_sent_again_shows_it_once() -> None:
    rows = (named("a"), named("b"), named("b", model="large", attempted=["small"], code=503))
    assert known(*rows, named("b", model="large", attempted=["small"])) == (
        [("small", True), ("small", False), ("large", True)],
        0,
    )


def test_two_questions_of_one_session_and_one_prompt_are_two() -> None:
    rows = (
        named("a", session="s"),
        named("b", session="s"),
        named("b", session="s", model="large", attempted=["small"]),
    )
    assert known(*rows)[0] == [("small", True), ("small", False), ("large", True)]


def test_an_answer_whose_row_is_missing_makes_another_of_its_model_and_length_wrong() -> None:
    rows = (named("a"), named("b", bucket="8K"), named("c", model="large", attempted=["small"]))
    found = judged(decisions(*rows), checked=False)
    assert list(found.attempts.select("model", "correct").iter_rows()) == [
        ("small", False),
        ("small", True),
        ("large", True),
    ]
    assert found.inferred == 1


def test_where_all_clients_check_unnamed_questions_count_but_for_the_deepest_attempts() -> None:
    assert known({}, checked=True) == ([("small", True)], 0)
    rows: tuple[dict[str, Any], ...] = ({}, {}, {"model": "large", "attempted": ["small"]})
    labels, unknown = known(*rows, checked=True)
    assert (sorted(labels), unknown) == ([("small", False), ("small", True)], 1)


# ---- what a whole log shows -----------------------------------------------------------------------------------------


@dataclass
class Rows:
    """Stands where the recorder has its log."""

    anonymous: Anonymous = field(default_factory=Anonymous)
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, ended: Ended) -> None:
        self.rows.append(self.anonymous.row(ended, float(len(self.rows)), TRUTH))


class World:
    """The client asks, the sidecar's own code routes and logs, and models are right as often as TRUTH says."""

    def __init__(self, seed: int, failing: float = 0.0) -> None:
        endpoints = [make_endpoint(f"10.0.0.{number}:1", model) for number, model in enumerate(TRUTH)]
        pool = Pool(endpoints, {"auto": list(TRUTH)})
        router = Router(pool, build_policy("fairlead", {}), fallbacks=0, rng=Random(seed))
        self.log = Rows()
        self.shared = services_around(router, log=self.log)
        self.rng = Random(seed)
        self.failing = failing
        self.client = httpx.Client(transport=httpx.MockTransport(self._answer), base_url="http://gateway")
        self.said: dict[tuple[bytes, str], str] = {}

    def _answer(self, request: httpx.Request) -> httpx.Response:
        one = Conversation(self.shared)
        headers = {name: value for name, value in request.headers.items() if name.startswith("x-")}
        unique = {"x-request-id": f"envoy-{len(self.log.rows)}"}
        replies = one.say(request_headers(extra=unique | headers), request_body(request.content))
        chosen = destination(replies[-1])
        assert chosen is not None
        model = self.shared.router.pool.by_address[chosen.split(",")[0]].model
        status = 503 if self.rng.random() < self.failing else 200
        one.say(response_headers(status), response_trailers())
        if status != 200:
            return httpx.Response(503, headers={"retry-after": "0"})
        draw = "right" if self.rng.random() < TRUTH[model] else "wrong"
        text = self.said.setdefault((request.content, model), draw)  # at temperature 0 it says so again
        body = {"model": model, "choices": [{"message": {"content": text}}]}
        return httpx.Response(200, content=json.dumps(body), headers={"x-fairlead-model": model})

    def ask(self, questions: int, retry: Retry, session: Callable[[int], str | None]) -> None:
        for number in range(questions):
            body = {
                "model": "auto",
                "messages": [{"role": "user", "content": f"question {number:06d}"}],  # all as long
                "temperature": 0,
            }
            ask(self.client, body, lambda text: text == "right", retry=retry, session_id=session(number))

    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(self.log.rows, schema=SCHEMA, orient="row")


SESSIONS: Final[Mapping[str, Callable[[int], str | None]]] = {
    "without": lambda _: None,
    "one each": lambda number: f"s{number}",
    "ten each": lambda number: f"s{number // 10}",
    "one for all": lambda _: "s",
}
RETRIES: Final = {"ten": Retry(), "two": Retry(max_attempts=2), "three": Retry(max_attempts=3)}


def twice(log: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([log, log])


CHANGES: Final[Mapping[str, Callable[[pl.DataFrame], pl.DataFrame]]] = {
    "whole": lambda log: log,
    "in mixed order": lambda log: log.sample(fraction=1.0, shuffle=True, seed=1),
    "first half": lambda log: log.head(log.height // 2),
    "second half": lambda log: log.tail(log.height // 2),
    "every second row": lambda log: log.gather_every(2),
    "half of the rows": lambda log: log.sample(fraction=0.5, seed=1),
    "a tenth lost": lambda log: log.sample(fraction=0.9, shuffle=True, seed=2),
    "twice": twice,
}


@pytest.fixture(scope="module")
def logs() -> dict[tuple[str, str], pl.DataFrame]:
    made = {}
    for number, (sessions, retry) in enumerate((s, r) for s in SESSIONS for r in RETRIES):
        world = World(seed=20 + number, failing=0.05)
        world.ask(QUESTIONS, RETRIES[retry], SESSIONS[sessions])
        made[sessions, retry] = world.frame()
    return made


def interval(found: Judged, model: str, z: float = 3.3) -> tuple[float, float]:
    """Wilson's, of 99.9 %; wider the more labels are known by their number only: losing rows by luck adds noise."""
    right = found.attempts.filter(pl.col("model") == model)["correct"].to_list()
    rate, total = sum(right) / len(right), len(right) / (1 + 6 * found.inferred / found.attempts.height)
    middle = (rate + z * z / (2 * total)) / (1 + z * z / total)
    reach = z / (1 + z * z / total) * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total))
    return middle - reach, middle + reach


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize("sessions", SESSIONS)
def test_true_accuracies_are_recovered_from_the_clients_own_log(
    logs: dict[tuple[str, str], pl.DataFrame], sessions: str, retry: str, change: str
) -> None:
    found = judged(CHANGES[change](logs[sessions, retry]), checked=False)
    for model, truth in TRUTH.items():
        low, high = interval(found, model)
        assert low <= truth <= high, f"{model}: {low:.3f} to {high:.3f}, not {truth}"


def test_the_log_of_two_sidecars_that_share_a_client_is_as_good() -> None:
    """Each has digests of its own: a question's attempts cannot be paired across them, but counted."""
    world = World(seed=5)
    world.ask(2 * QUESTIONS, Retry(), SESSIONS["without"])
    other = Random(5)
    mixed = world.frame().with_columns(
        pl.Series("question", [f"{q}{other.choice('ab')}" for q in world.frame()["question"]])
    )
    found = judged(mixed, checked=False)
    for model, truth in TRUTH.items():
        low, high = interval(found, model)
        assert low <= truth <= high
    assert found.inferred > 100


def test_a_whole_log_gives_each_attempt_its_own_label() -> None:
    world = World(seed=3)
    truth: Labels = []
    body = {"model": "auto", "messages": [{"role": "user", "content": "q"}], "temperature": 0}
    for number in range(300):
        body["messages"] = [{"role": "user", "content": f"{number}"}]
        answer = ask(world.client, body, lambda text: text == "right")
        seen: set[str] = set()
        for attempt in answer.attempts:
            if attempt.model not in seen:
                truth.append((attempt.model, attempt.correct))
            seen.add(attempt.model)
    found = judged(world.frame(), checked=False)
    assert list(found.attempts.select("model", "correct").iter_rows()) == truth
    assert found.inferred == 0


attempts_of_any_kind = st.fixed_dictionaries(
    {
        "question": st.sampled_from([None, "a", "b"]),
        "last": st.sampled_from([None, False, True]),
        "model": st.sampled_from(["small", "large"]),
        "attempted": st.lists(st.sampled_from(["small", "large"]), max_size=4),
        "code": st.sampled_from([200, 499, 503]),
        "session": st.sampled_from([None, "s"]),
    }
)


@given(st.lists(attempts_of_any_kind, max_size=12), st.booleans())
@settings(max_examples=60)
def test_every_answer_is_known_once_or_counted_as_unknown(rows: list[dict[str, Any]], checked: bool) -> None:
    found = judged(decisions(*rows), checked=checked)
    assert found.attempts.height + found.unknown == sum(row["code"] == 200 for row in rows)
    assert found.unknown >= 0
    assert found.attempts["correct"].null_count() == 0
