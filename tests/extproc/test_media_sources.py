"""No client has an engine fetch from where it likes: another host, the engine itself, or a file of its machine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fairlead.config.gateway import Gateway
from fairlead.extproc.body_reader import BodyReader
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.services import Services
from tests.api.media_bodies import BODIES, CONTENTS, FETCHED_BY_NOBODY, NOT_ALLOWED, URL
from tests.extproc.world import Conversation, as_response, make_services, request_body, request_headers

CHAT = "/v1/chat/completions"


def _allowing(*domains: str) -> Services:
    services = make_services()
    gateway = Gateway.model_validate({"allowed_media_domains": domains})
    return replace(services, config=services.config.model_copy(update={"gateway": gateway}))


def _asked(services: Services, body: Any, path: str = CHAT, mode: pb.BodySendMode = pb.BUFFERED) -> tuple[int, Any]:
    """The status that Fairlead answers by itself, 0 if an engine gets the request; and the error."""
    written = body if isinstance(body, bytes) else json.dumps({"model": "small", **body}).encode()
    replies = Conversation(services).say(request_headers(path=path, mode=mode), request_body(written))
    answer = replies[-1].immediate_response
    if not answer.HasField("status"):
        return 0, None
    return answer.status.code, json.loads(answer.body)["error"]


def _with(url: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


@pytest.mark.parametrize("mode", [pb.BUFFERED, pb.FULL_DUPLEX_STREAMED])
@pytest.mark.parametrize(
    ("path", "body"), [*BODIES, *[(CHAT, {"messages": [{"role": "user", "content": each}]}) for each in CONTENTS]]
)
def test_by_default_engines_fetch_nothing(path: str, body: dict[str, Any], mode: pb.BodySendMode) -> None:
    status, error = _asked(make_services(), body, path, mode)
    assert (status, error["code"]) == (400, "media_source_not_allowed")
    assert "'evil.example'" in error["message"]
    assert "gateway.allowed_media_domains" in error["message"]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_they_fetch_from_domains_that_the_operator_allows(path: str, body: dict[str, Any]) -> None:
    assert _asked(_allowing("other.example", "EVIL.example."), body, path) == (0, None)
    assert _asked(_allowing("*"), body, path) == (0, None)


@pytest.mark.parametrize("text", NOT_ALLOWED)
def test_from_no_other_place(text: str) -> None:
    assert _asked(_allowing("good.example"), _with(text))[0] == 400


@pytest.mark.parametrize("text", ["file:///dev/zero", "/etc/passwd", "dev/zero"])
def test_no_file_of_an_engine_is_allowed_by_any_domain(text: str) -> None:
    status, error = _asked(_allowing("*"), _with(text))
    assert status == 400
    assert "allowed_media_domains" not in error["message"]  # it would not help


@pytest.mark.parametrize("body", [_with("data:image/png;base64,AAAA"), *FETCHED_BY_NOBODY])
def test_other_requests_go_their_way(body: dict[str, Any]) -> None:
    assert _asked(make_services(), body) == (0, None)


def test_refusals_are_counted() -> None:
    services = make_services()
    _asked(services, _with(URL))
    assert services.recorder.refused_for == {("", "media_source_not_allowed"): 1}


async def test_the_same_holds_for_a_long_body(reader: BodyReader) -> None:
    shared = replace(make_services(), max_body_bytes=32 << 20, reader=reader)
    body = _with(URL)
    body["messages"][0]["content"] += [{"type": "text", "text": "x" * (1 << 20)}]
    said = Conversation(shared)
    said.say(request_headers(), request_body(json.dumps({"model": "small", **body}).encode()))
    assert said.stream.held is not None
    held, said.stream.held = said.stream.held, None
    (reply,) = [as_response(each) for each in await held]
    assert reply.immediate_response.status.code == 400
    said.stream.close()
