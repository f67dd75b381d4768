"""Where a request enters a cascade."""

from __future__ import annotations

import msgspec

from fairlead.api.prompt import Prompt, parse
from fairlead.cascade.route import CascadeRoute, Entry, enter, first_stage

ROUTE = CascadeRoute(name="answer", models=("small", "medium", "large"), thresholds=(70.0, 60.0))
CHAT = "/v1/chat/completions"


def surely(_: str) -> float:
    return 1.0


def test_a_request_starts_where_its_model_is_likely_enough_to_be_right() -> None:
    chance = {"small": 0.1, "medium": 0.6, "large": 0.2}
    picky = msgspec.structs.replace(ROUTE, skip_below=0.5)
    assert first_stage(picky, chance.__getitem__) == 1
    assert first_stage(picky, lambda _: 0.1) == 2, "the last model may always answer"
    assert first_stage(ROUTE, lambda _: 0.01) == 0, "without a limit everything starts with the first"


def test_a_model_that_has_answered_wrongly_is_not_asked_first_again() -> None:
    assert first_stage(ROUTE, surely, ("small",)) == 1
    assert first_stage(ROUTE, surely, ("medium", "small")) == 2
    assert first_stage(ROUTE, surely, ("small", "medium", "large")) == 2


def entered(body: bytes, route: CascadeRoute = ROUTE, path: str = CHAT) -> Entry | None:
    prompt = parse(body, path)
    assert isinstance(prompt, Prompt)
    return enter(route, path, body, surely, streams=prompt.streams, with_usage=prompt.with_usage)


def test_streams_are_buffered_or_left_alone_as_the_route_says() -> None:
    body = b'{"model":"answer","stream":true,"stream_options":{"include_usage":true}}'
    entry = entered(body)
    assert entry is not None
    assert (entry.streams, entry.with_usage, entry.model) == (True, True, "small")
    assert entered(body, msgspec.structs.replace(ROUTE, buffer_streams=False)) is None
    plain = entered(b'{"model":"answer","stream":1}')
    assert plain is not None
    assert not plain.streams


def test_an_api_whose_answers_cannot_be_judged_is_left_alone() -> None:
    assert entered(b'{"model":"answer","input":"x"}', path="/v1/embeddings") is None


def test_odd_options_ask_for_no_usage() -> None:
    entry = entered(b'{"model":"answer","stream":true,"stream_options":[[{"include_usage":true}]]}')
    assert entry is not None
    assert not entry.with_usage


def test_a_request_too_long_to_keep_is_left_alone() -> None:
    body = msgspec.json.encode({"model": "answer", "messages": [{"role": "user", "content": "x" * 2000}]})
    assert entered(body) is not None
    assert entered(body, msgspec.structs.replace(ROUTE, most_bytes=1000)) is None
