"""The salt of a tenant's cache, as it is written into bodies that engines get."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fairlead.api.cache_salt import SALTED_PATHS, salt_of
from fairlead.extproc.body_reader import BodyReader
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.services import Services
from tests.extproc.world import Conversation, as_response, make_services, request_body, request_headers, set_headers

CHAT = "/v1/chat/completions"
DUPLEX = pb.FULL_DUPLEX_STREAMED
ACME = json.loads(salt_of(b"acme", b""))


def separating() -> Services:
    return replace(make_services(), tenant_header=b"x-tenant", separates_caches=True)


def sent(
    body: bytes,
    *,
    tenant: str = "acme",
    path: str = CHAT,
    mode: pb.BodySendMode = pb.BUFFERED,
    kind: str = "application/json",
) -> bytes:
    """The body that the engine gets."""
    said = Conversation(separating())
    extra = {"content-type": kind} | ({"x-tenant": tenant} if tenant else {})
    replies = said.say(request_headers(path=path, mode=mode, extra=extra), request_body(body))
    if mode == DUPLEX:
        return b"".join(each.request_body.response.body_mutation.streamed_response.body for each in replies)
    response = replies[-1].request_body.response
    if not response.body_mutation.HasField("body"):
        return body
    assert set_headers(replies[-1])["content-length"] == str(len(response.body_mutation.body))
    return response.body_mutation.body


@pytest.mark.parametrize("mode", [pb.BUFFERED, DUPLEX])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"small","messages":[]}',
        b' { "model" : "small", "messages" : [ ] } \n',
        b'{"messages":[],"model":"small","cache_salt":null}',
        b'{"model":"small","cache\\u005fsalt":"","messages":[]}',
        b'{"model":"auto","messages":[],"kv_transfer_params":{"x":1}}',
        b'{"model":"small","messages":[{"role":"user","content":[{"image_url":"data:,","uuid":"x"}]}]}',
    ],
)
def test_a_request_has_its_tenants_salt(body: bytes, mode: pb.BodySendMode) -> None:
    assert json.loads(sent(body, mode=mode))["cache_salt"] == ACME


def test_nothing_else_changes() -> None:
    body = b'{"model":"small" ,"messages":[{"role":"user","content":"}\\u00e9"}]\t} '
    assert sent(body) == body[:-2] + b',"cache_salt":"%b"} ' % ACME.encode()


@pytest.mark.parametrize("own", ["mine", json.loads(salt_of(b"other", b"")), ["a", "b"], 7])
def test_a_clients_own_salt_separates_further_and_joins_nobody(own: Any) -> None:
    body = json.dumps({"model": "small", "messages": [], "cache_salt": own}).encode()
    salts = [json.loads(sent(body, tenant=tenant))["cache_salt"] for tenant in ("acme", "other", "")]
    assert len({*salts, ACME, json.loads(salt_of(b"other", b""))}) == 5
    assert json.loads(sent(body))["cache_salt"] == salts[0]


def test_without_a_tenant_a_request_shares_with_its_like() -> None:
    body = b'{"model":"small","messages":[]}'
    assert sent(body, tenant="") == body


@pytest.mark.parametrize("path", sorted(SALTED_PATHS))
def test_on_every_path_that_leaves_something_in_a_cache(path: str) -> None:
    assert json.loads(sent(b'{"model":"small","input":"x","query":"q"}', path=path))["cache_salt"] == ACME


@pytest.mark.parametrize("path", ["/tokenize", "/v1/audio/speech", "/elsewhere"])
def test_other_paths_keep_their_bodies(path: str) -> None:
    assert sent(b'{"model":"small"}', path=path) == b'{"model":"small"}'


def test_but_no_other_tenants_salt() -> None:
    assert json.loads(sent(b'{"cache_salt":"x"}', path="/elsewhere"))["cache_salt"].startswith(ACME)


def test_a_form_keeps_its_body() -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n}\r\n--b--\r\n'
    assert sent(form, path="/pooling", kind="multipart/form-data; boundary=b") == form


def test_a_salt_twice_is_refused_as_its_value_cannot_be_told() -> None:
    body = b'{"model":"small","messages":[],"cache_salt":"a","cache_salt":"b"}'
    headers = request_headers(extra={"x-tenant": "acme"})
    assert Conversation(separating()).say(headers, request_body(body))[-1].immediate_response.status.code == 400


@pytest.mark.parametrize("ending", [b"}", b"} \n", b"}" + b" " * 1000, b',"cache_salt":"x"}'])
async def test_a_long_body_has_it_too(reader: BodyReader, ending: bytes) -> None:
    shared = replace(separating(), max_body_bytes=32 << 20, reader=reader)
    text = b"x" * (1 << 20)
    body = b'{"model":"small","messages":[{"role":"user","content":"%b"}]%b' % (text, ending)
    said = Conversation(shared)
    said.say(request_headers(extra={"x-tenant": "acme"}), request_body(body))
    assert said.stream.held is not None
    held, said.stream.held = said.stream.held, None
    (reply,) = [as_response(each) for each in await held]
    document = json.loads(reply.request_body.response.body_mutation.body)
    assert document["cache_salt"].startswith(ACME)
    assert document["messages"][0]["content"] == text.decode()
    said.stream.close()
