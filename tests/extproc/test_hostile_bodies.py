"""Bodies made to stop, leak from or get past the sidecar. Bounds are of this thread's CPU time: it has neighbours."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairlead.api.body_limits import INLINE, MOST_ITEMS
from fairlead.api.reserved import RESERVED_KEYS
from fairlead.extproc.body import whole
from fairlead.extproc.body_reader import BodyReader
from fairlead.extproc.held_bytes import HeldBytes
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.pick import Pick, pick, read_inline
from fairlead.extproc.reading import Question, Read
from fairlead.extproc.request import HttpRequest
from fairlead.extproc.services import Services
from fairlead.tools.bench.processes import resident_bytes
from tests.extproc.world import (
    Conversation,
    as_response,
    chat,
    destination,
    kinds,
    make_services,
    request_body,
    request_headers,
)
from tests.fuzz.world import children_of
from tests.waiting import until

CHAT = "/v1/chat/completions"
DUPLEX = pb.FULL_DUPLEX_STREAMED
LONGEST_MS = 60.0  # the goal is 20 on a quiet machine; caches are cold where neighbours take turns
MIB = 1 << 20


def _of(content: bytes, more: bytes = b"") -> bytes:
    return b'{"model":"small"%b,"messages":[{"role":"user","content":%b}]}' % (more, content)


def _times(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


FAMILIES: dict[str, Callable[[int], bytes]] = {
    "prose": lambda size: _of(b'"%b"' % _times(b"words ", size)),
    "escapes": lambda size: _of(b'"%b"' % _times(b'\\"', size)),
    "braces in text": lambda size: _of(b'"%b"' % _times(b"{[", size)),
    "numbers": lambda size: _of(b'"x"', b',"input":[%b0]' % _times(b"1,", size)),
    "empty objects": lambda size: _of(b'"x"', b',"tools":[%b0]' % _times(b"{},", size)),
    "empty messages": lambda size: b'{"model":"small","messages":[%b{}]}' % _times(b"{},", size),
    "parts": lambda size: _of(b"[%b{}]" % _times(b"{},", size)),
    "images": lambda size: _of(b"[%b{}]" % _times(b'{"image":0},', size)),
    "one image a message": lambda size: (
        b'{"model":"small","messages":[%b{}]}' % _times(b'{"role":"user","content":[{"image":0}]},', size)
    ),
    "images elsewhere": lambda size: _of(b"[%b{}]" % _times(b'{"image":"http://h"},', size)),
    "texts among images": lambda size: _of(b'[%b"x"]' % _times(b'{"image":"data:,"},"x",', size)),
    "texts before an image": lambda size: _of(b'[%b{"image":0}]' % _times(b'"x",', size)),
    "lists of images": lambda size: _of(b"[%b{}]" % _times(b'{"image":[0,0,0,0]},', size)),
    "one list of images": lambda size: _of(b'[{"image":[%b0]}]' % _times(b"0,", size)),
    "data of images": lambda size: _of(b'"x"', b',"image_data":[%b0]' % _times(b"0,", size)),
    "texts of images": lambda size: _of(b'"x"', b',"image_data":["%b"]' % _times(b"http://h/", size)),
    "nests": lambda size: _of(b'[{"content":' * 450 + b'"%b"' % _times(b"x", size) + b"}]" * 450),
    "metadata": lambda size: _of(
        b'"x"', b',"metadata":{"attempted_models":[%b0],"x":[%b0]}' % (_times(b"{},", size), b"")
    ),
    "sampling": lambda size: _of(
        b'"x"', b',"sampling_params":[%b0],"max_tokens":%b' % (_times(b"{},", size), b"9" * 9999)
    ),
    "keys": lambda size: (
        b'{%b"kv_transfer_params":0,"model":"small"}' % b"".join([b'"%d":0,' % number for number in range(size // 9)])
    ),
}


def _in_flight(shared: Services) -> int:
    return sum(
        endpoint.load.inflight_requests + endpoint.load.inflight_prompt_tokens + endpoint.load.pending_prefill_tokens
        for endpoint in shared.router.pool.endpoints
    )


async def _answers(said: Conversation, *messages: pb.ProcessingRequest) -> tuple[list[str], float]:
    """Kinds of the replies to the last message, those that come later too, and this thread's longest step, in ms."""
    for message in messages[:-1]:
        said.say(message)
    started_s = time.thread_time()
    replies = said.say(messages[-1])
    longest_s = time.thread_time() - started_s
    if said.stream.held is not None:
        held, said.stream.held = said.stream.held, None
        # Steps of a coroutine that waits for another process: what the thread used between is this pick's.
        started_s = time.thread_time()
        later = [as_response(reply) for reply in await held]
        longest_s = max(longest_s, time.thread_time() - started_s)
        replies = [reply for reply in replies if reply.WhichOneof("response")] + later
    return kinds(replies), longest_s * 1e3


@pytest.mark.parametrize("size", [250_000, 8 * MIB], ids=["250 KB", "8 MB"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_no_body_keeps_the_event_loop_or_load(family: str, size: int, reader: BodyReader) -> None:
    shared = replace(make_services(), max_body_bytes=32 * MIB, reader=reader)
    body = FAMILIES[family](size)
    longest_ms: list[float] = []  # the first is cold, and a neighbour may empty the caches again
    while len(longest_ms) < 5 and min(longest_ms, default=LONGEST_MS) >= LONGEST_MS:
        said = Conversation(shared)
        answers, took_ms = await _answers(said, request_headers(), request_body(body))
        longest_ms.append(took_ms)
        assert len(answers) == 1
        assert answers[0].startswith(("request_body", "immediate_response"))
        said.stream.close()
    assert min(longest_ms) < LONGEST_MS
    assert _in_flight(shared) == 0
    assert shared.held.bytes == 0
    assert shared.recorder.stream_failures == 0


IN_A_PART = b'{"content":[{"image":0}]}'
WHERE_PARTS_STAND = {
    "a message": b'{"model":"small","messages":[{"role":"user","content":[%b]}]}',
    "the input of a response": b'{"model":"small","input":[%b]}',
    "a prompt": b'{"model":"small","prompt":[%b]}',
}


@pytest.mark.parametrize("body", WHERE_PARTS_STAND.values(), ids=WHERE_PARTS_STAND)
def test_lists_with_images_are_counted_before_each_is_parsed_between_two_requests(body: bytes) -> None:
    def is_read_inline(parts: int) -> bool:
        whole_body = body % b",".join([IN_A_PART] * parts)
        return read_inline(HttpRequest(CHAT, {}, b"", whole_body)) is not None

    assert is_read_inline(INLINE.items_with_media // 4)
    assert not is_read_inline(INLINE.items_with_media // 2 + 1)  # a part is two objects


def test_messages_of_one_image_are_counted_before_each_is_parsed_between_two_requests() -> None:
    message = b'{"role":"user","content":[{"image":0}]}'
    messages = b'{"model":"small","messages":[%b]}' % b",".join([message] * (INLINE.items_with_media + 1))
    assert read_inline(HttpRequest(CHAT, {}, b"", messages)) is None


def test_a_short_body_of_very_many_keys_is_not_read_between_two_requests() -> None:
    def read_of(keys: int) -> object:
        body = b'{"model":"small","messages":[],%b}' % b",".join([b'"k":0'] * keys)
        return read_inline(HttpRequest(CHAT, {}, b"", body))

    assert isinstance(read_of(10_000), Read)
    assert read_of(20_000) is None


@pytest.mark.parametrize("around", [0, 60_000], ids=["alone", "beside a text"])
def test_a_short_body_of_very_many_messages_is_not_parsed_between_two_requests(
    around: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = b'{"model":"small","x":"%b","messages":[%b]}' % (b"x" * around, b",".join([b"{}"] * 64_000))
    monkeypatch.setattr("fairlead.extproc.pick.parse", None)
    assert read_inline(HttpRequest(CHAT, {}, b"", messages)) is None


def test_a_text_is_read_between_two_requests_whatever_stands_in_it() -> None:
    text = b'{\\"key\\":[1]},' * 16_000
    assert isinstance(read_inline(HttpRequest(CHAT, {}, b"", b'{"model":"small","prompt":"%b"}' % text)), Read)


@pytest.mark.parametrize("depth", [100, 500, 900, *range(960, 1000), 5000, 100_000])
def test_a_body_of_any_depth_is_stripped_or_refused_and_leaves_no_load(depth: int) -> None:
    shared = make_services()
    body = _of(b'"x"', b',"kv_transfer_params":{},"x":' + b"[" * depth + b"]" * depth).replace(b"small", b"auto")
    said = Conversation(shared)
    (reply,) = said.say(request_headers(), request_body(body))[1:]
    if reply.HasField("immediate_response"):
        assert reply.immediate_response.status.code == 400
        assert "deep" in json.loads(reply.immediate_response.body)["error"]["message"]
    else:
        assert b'"kv_transfer_params":null' in reply.request_body.response.body_mutation.body
    said.stream.close()
    assert _in_flight(shared) == 0


async def test_more_objects_than_the_limit_are_a_400_before_they_are_made(reader: BodyReader) -> None:
    shared = replace(make_services(), max_body_bytes=32 * MIB, reader=reader)
    said = Conversation(shared)
    said.say(request_headers(), request_body(b'{"model":"small","messages":[%b{}]}' % (b"{}," * 8_000_000)))
    assert said.stream.held is not None
    held, said.stream.held = said.stream.held, None
    (reply,) = [as_response(reply) for reply in await held]
    assert reply.immediate_response.status.code == 400
    assert str(MOST_ITEMS) in json.loads(reply.immediate_response.body)["error"]["message"]


NAMES = st.sampled_from(
    ["model", "messages", "content", "role", "metadata", "attempted_models", "kv_transfer_params", "prompt", "input",
     "stream", "stream_options", "max_tokens", "tools", "bootstrap_host", "sampling_params", "image", "text", "query"]
)  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["small", "auto", "user"])
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(), inner, max_size=5),
    max_leaves=30,
)
PATHS = st.sampled_from([CHAT, "/v1/completions", "/v1/messages", "/generate", "/v1/rerank", "/tokenize", "/elsewhere"])
RAW = st.sampled_from(
    [b"1" * 400, b"-1e400", b"1e9999", b"NaN", b"-Infinity", b'"\\ud800"', b'"\xff\xfe"', b"\xef\xbb\xbf{}",
     b"[" * 1200, b'{"a":1,"a":2}', b'"\\u0000"', b"0x1", b"'", b"\x00", b"[]]", b"nul"]
)  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """JSON with odd values, duplicate keys and broken bytes at any place."""
    document = draw(st.dictionaries(NAMES, JSON, max_size=6))
    document.setdefault("model", draw(st.sampled_from(["small", "auto", "large", "nobody", ""])))
    body = json.dumps(document, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(body)))
        cut = draw(st.integers(0, 3))
        body = body[:place] + draw(RAW | st.binary(max_size=3)) + body[place + cut :]
    if draw(st.booleans()):
        key = json.dumps(draw(NAMES)).encode()
        body = body[:-1] + b"," + key + b":" + draw(RAW) + b"," + key + b":1}"
    return body


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(bodies(), PATHS, st.sampled_from([b"application/json", b"", b"text/plain", b"multipart/form-data; boundary=x"]))
@example(b'{"model":"small","kv_transfer_params":{},"kv_transfer_params":1}', CHAT, b"")
def test_no_body_makes_a_pick_raise_or_leak(body: bytes, path: str, content_type: bytes) -> None:
    shared = make_services()
    picked = pick(shared, HttpRequest(path, {b"content-type": content_type}, b"id", body))
    if isinstance(picked, Pick):
        sent = body if picked.body is None else whole(picked.body)
        assert not _carries(sent), "an engine would read a parameter that only the gateway may set"
        picked.in_flight.withdraw(0.0)
    assert _in_flight(shared) == 0


def _carries(body: bytes) -> bool:
    """As Python's own parser, which vLLM uses, reads it."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and any(
        document.get(key) is not None for key in ("kv_transfer_params", "bootstrap_host")
    )


RESERVED = sorted(RESERVED_KEYS)


@pytest.mark.parametrize(
    "path", [CHAT, f"{CHAT}/", "/generate", "/inference/v1/generate", "/invocations", "/v1/rerank", "/new"]
)
@pytest.mark.parametrize("key", RESERVED)
@pytest.mark.parametrize("mode", [pb.BUFFERED, DUPLEX])
def test_what_moves_kv_reaches_no_engine(path: str, key: str, mode: pb.BodySendMode) -> None:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in key)
    for written in (key, escaped):
        body = b'{"model":"small","messages":[],"%b":{"a":[1]}}' % written.encode()
        replies = Conversation().say(request_headers(path=path, mode=mode), request_body(body))
        sent = b"".join(
            reply.request_body.response.body_mutation.streamed_response.body
            if mode == DUPLEX
            else reply.request_body.response.body_mutation.body
            for reply in replies
        )
        assert json.loads(sent) == {"model": "small", "messages": [], key: None}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"small","sampling_params":{"extra_args":{"kv_transfer_params":{}}}}',
        b'{"model":"small","vllm_xargs":{"kv\\u005ftransfer_params":[1]}}',
    ],
)
def test_what_moves_kv_is_refused_a_level_lower(body: bytes) -> None:
    (_, reply) = Conversation().say(request_headers(path="/inference/v1/generate"), request_body(body))
    assert reply.immediate_response.status.code == 400


_NAMED_IMAGE = b'[{"type":"image_url","image_url":{"url":"data:,"},"uuid":"another tenant\'s"}]'


@pytest.mark.parametrize("mode", [pb.BUFFERED, DUPLEX])
@pytest.mark.parametrize("model", [b"small", b"auto"])
def test_no_client_names_an_image_of_another_tenants(mode: pb.BodySendMode, model: bytes) -> None:
    body = _of(_NAMED_IMAGE, b',"bootstrap_pair_key":{"uuid":"x"}').replace(b"small", model)
    replies = Conversation().say(request_headers(mode=mode), request_body(body))
    mutations = [each.request_body.response.body_mutation for each in replies]
    sent = json.loads(b"".join(m.streamed_response.body if mode == DUPLEX else m.body for m in mutations))
    assert sent["messages"][0]["content"] == [{"type": "image_url", "image_url": {"url": "data:,"}, "uuid": None}]
    assert sent["bootstrap_pair_key"] is None


async def test_the_same_in_a_long_body(reader: BodyReader) -> None:
    shared = replace(make_services(), max_body_bytes=32 * MIB, reader=reader)
    said = Conversation(shared)
    said.say(request_headers(), request_body(_of(_NAMED_IMAGE[:-1] + b',{"type":"text","text":"%b"}]' % (b"x" * MIB))))
    assert said.stream.held is not None
    held, said.stream.held = said.stream.held, None
    (reply,) = [as_response(each) for each in await held]
    sent = json.loads(reply.request_body.response.body_mutation.body)
    assert sent["messages"][0]["content"][0]["uuid"] is None
    said.stream.close()


@pytest.mark.parametrize(
    "body",
    [
        '{"kv_transfer_params":1}'.encode("utf-16"),
        b'{"bootstrap_room":1,',
        b'{"\\u006bv":1,',
        '{"kv":1}'.encode("utf-32"),
    ],
)
def test_a_body_that_may_carry_it_and_cannot_be_read_is_refused(body: bytes) -> None:
    headers = request_headers(path="/elsewhere", extra={"content-type": "text/plain"})
    (_, reply) = Conversation().say(headers, request_body(body))
    assert reply.immediate_response.status.code == 400


def test_other_bodies_that_are_no_json_pass_as_they_are() -> None:
    headers = request_headers(path="/elsewhere", extra={"content-type": "application/octet-stream"})
    (_, reply) = Conversation().say(headers, request_body(b"\xff\x01\x02 binary"))
    assert kinds([reply]) == ["request_body"]


def _model_of(reply: pb.ProcessingResponse, shared: Services) -> str:
    (model,) = {shared.router.pool.by_address[name].model for name in (destination(reply) or "").split(",")}
    return model


JSON_PATHS = [
    "/v1/rerank", "/rerank", "/v1/score", "/pooling", "/classify", "/tokenize", "/detokenize",
    "/v1/messages/count_tokens", "/v1/images/generations", "/v1/moderations", "/v1/audio/speech", f"{CHAT}/",
]  # fmt: skip


@pytest.mark.parametrize("path", JSON_PATHS)
def test_every_path_that_names_a_model_goes_to_it_and_is_counted_and_explained(path: str) -> None:
    shared = make_services()
    for model in ("small", "large") * 3:
        said = Conversation(shared)
        body = json.dumps({"model": model, "query": "q", "input": "text", "messages": []}).encode()
        (_, reply) = said.say(request_headers(path=path), request_body(body))
        assert _model_of(reply, shared) == model
        said.stream.close()
    shared.recorder.settle()
    assert shared.recorder.attempts == {"small": 3, "large": 3}
    assert {route for route, *_ in shared.recorder.requests} == {"small", "large"}
    assert [(each.model, each.why) for each in shared.recorder.decisions] == [("small", "cost"), ("large", "cost")] * 3
    (_, reply) = Conversation(shared).say(request_headers(path=path), request_body(b'{"model":"nobody"}'))
    assert reply.immediate_response.status.code == 404


def _form(*fields: tuple[str, bytes]) -> bytes:
    parts = [b'--b0\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (n.encode(), v) for n, v in fields]
    return b"".join(parts) + b"--b0--\r\n"


FORM = {"content-type": "multipart/form-data; boundary=b0"}


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations/", "/v1/images/edits"])
@pytest.mark.parametrize("file_first", [False, True])
def test_an_upload_goes_to_the_model_of_its_form(path: str, file_first: bool) -> None:
    shared = make_services()
    for asked, body_model in (("large", None), ("auto", "small large"), ("small", None)):
        fields = [("model", asked.encode()), ("file", b"\x00\r\n--b\r\nRIFF" * 100)]
        form = _form(*(fields[::-1] if file_first else fields))
        (_, reply) = Conversation(shared).say(request_headers(path=path, extra=FORM), request_body(form))
        model = _model_of(reply, shared)
        sent = reply.request_body.response.body_mutation.body
        if body_model is None:
            assert (model, sent) == (asked, b"")
        else:
            assert model in body_model.split()
            assert sent == form.replace(b"\r\n\r\nauto\r\n", b"\r\n\r\n%b\r\n" % model.encode())


def test_a_form_with_a_thousand_fields_or_without_its_end_is_refused() -> None:
    for form in (_form(*[("a", b"b")] * 1000), b"--b0\r\nnothing", b"", _form(("kv_transfer_params", b"{}"))):
        headers = request_headers(path="/v1/audio/transcriptions", extra=FORM)
        (_, reply) = Conversation().say(headers, request_body(form))
        assert reply.immediate_response.status.code == 400


def test_an_upgrade_goes_to_the_model_of_its_query() -> None:
    shared = make_services()
    for model in ("small", "large") * 2:
        (reply,) = Conversation(shared).say(request_headers("GET", f"/v1/realtime?intent=x&model={model}", end=True))
        assert _model_of(reply, shared) == model
    (reply,) = Conversation(shared).say(request_headers("GET", "/v1/realtime?model=auto", end=True))
    model = _model_of(reply, shared)
    paths = [
        o.header.raw_value
        for o in reply.request_headers.response.header_mutation.set_headers
        if o.header.key == b":path"
    ]
    assert paths == [f"/v1/realtime?model={model}".encode()]


def test_names_of_attempted_models_are_cut_and_capped() -> None:
    shared = make_services()
    names = ["n" * 5000] * 3
    for attempted in (names, ",".join(names)):
        said = Conversation(shared)
        said.say(request_headers(), request_body(chat(metadata={"attempted_models": attempted})))
        said.stream.close()
    said = Conversation(shared)
    said.say(request_headers(extra={"x-fairlead-attempted-models": ",".join(["m" * 300] * 90)}), request_body(chat()))
    shared.recorder.settle()
    for decision in shared.recorder.decisions:
        assert sum(map(len, decision.attempted)) <= 32 * 256


def test_partial_bodies_of_all_streams_together_have_a_limit() -> None:
    shared = replace(make_services(), held=HeldBytes(100_000))
    streams = [Conversation(shared) for _ in range(12)]
    refused = []
    for said in streams:
        replies = said.say(request_headers(mode=DUPLEX), request_body(b"x" * 10_000, end=False))
        refused += [reply.immediate_response.status.code for reply in replies]
    assert refused == [503] * 3
    assert shared.held.refused == 3
    for said in streams:
        said.stream.close()
    assert shared.held.bytes == 0


class Uploads:
    """Room for ten bodies of 10,000 bytes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.shared = replace(make_services(), held=HeldBytes(105_000), clock_s=lambda: self.now_s)
        self.displaced: list[int] = []

    def begin(self, *, end: bool = False) -> Conversation:
        said = Conversation(self.shared)
        said.stream.send = lambda reply: self.displaced.append(as_response(reply).immediate_response.status.code)
        text = b'"%b"' % (b"x" * 9_900)
        said.say(request_headers(mode=DUPLEX), request_body(_of(text) if end else b"x" * 9_900, end=end))
        return said

    def refused(self, said: Conversation) -> bool:
        return any(reply.HasField("immediate_response") for reply in said.replies)


def test_bodies_that_never_end_give_way_after_some_seconds_when_others_find_no_room() -> None:
    uploads = Uploads()
    stalled = [uploads.begin() for _ in range(10)]
    assert uploads.refused(uploads.begin()), "they have just begun"
    for second in range(1, 6):
        uploads.now_s = second
        for said in stalled:
            said.say(request_body(b"x", end=False))  # a byte now and then saves none
    assert not uploads.refused(uploads.begin(end=True))
    assert uploads.displaced == [503]
    assert stalled[0].stream.request_phase == "refused"
    assert not stalled[0].say(request_body(b"x" * 10_000, end=True)), "what comes of it later is dropped"
    assert stalled[1].stream.request_phase == "collecting"
    held = uploads.shared.held
    assert (held.displaced, held.refused) == (1, 1)
    for said in stalled:
        said.stream.close()
    assert held.bytes == 0


def test_a_body_that_is_whole_or_whose_client_left_gives_no_way() -> None:
    uploads = Uploads()
    for _ in range(3):
        uploads.begin().stream.close()
        uploads.begin(end=True)
    stalled = [uploads.begin() for _ in range(10)]
    uploads.now_s = 6.0
    uploads.begin()
    assert uploads.displaced == [503]
    assert [said.stream.request_phase for said in stalled[:2]] == ["refused", "collecting"]


def test_the_oldest_body_itself_displaces_none() -> None:
    uploads = Uploads()
    oldest, *_ = [uploads.begin() for _ in range(10)]
    uploads.now_s = 6.0
    (reply,) = oldest.say(request_body(b"x" * 9_900, end=False))
    assert reply.immediate_response.status.code == 503
    assert not uploads.displaced


def test_a_body_in_a_thousand_parts_counts_what_its_parts_take() -> None:
    shared = replace(make_services(), held=HeldBytes(50_000))
    said = Conversation(shared)
    replies = said.say(request_headers(mode=DUPLEX), *[request_body(b"x", end=False) for _ in range(1000)])
    assert replies[0].immediate_response.status.code == 503


def _long() -> bytes:
    return _of(b'"%b"' % _times(b"words ", MIB), b',"kv_transfer_params":{}')


@pytest.mark.parametrize("mode", [pb.BUFFERED, DUPLEX])
async def test_a_long_body_is_answered_later_and_rewritten(mode: pb.BodySendMode, reader: BodyReader) -> None:
    shared = replace(make_services(), max_body_bytes=32 * MIB, reader=reader)
    said = Conversation(shared)
    body = _long().replace(b"small", b"auto")
    waits = [
        reply.HasField("override_message_timeout") for reply in said.say(request_headers(mode=mode), request_body(body))
    ]
    assert said.stream.held is not None
    assert waits == ([False, True] if mode == pb.BUFFERED else [])
    held, said.stream.held = said.stream.held, None
    replies = [as_response(reply) for reply in await held]
    mutations = [reply.request_body.response.body_mutation for reply in replies]
    sent = b"".join(m.streamed_response.body if mode == DUPLEX else m.body for m in mutations)
    read: Any = json.loads(sent)
    assert read["kv_transfer_params"] is None
    assert read["model"] in {"small", "large"}
    assert len(read["messages"][0]["content"]) > 1_000_000
    said.stream.close()
    assert _in_flight(shared) == 0


async def test_a_client_that_leaves_while_its_body_is_read_leaves_nothing(reader: BodyReader) -> None:
    shared = replace(make_services(), max_body_bytes=32 * MIB, reader=reader)
    said = Conversation(shared)
    said.say(request_headers(), request_body(_long()))
    assert shared.held.bytes > MIB
    assert said.stream.held is not None
    reading = asyncio.ensure_future(said.stream.held)
    said.stream.held = None
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    said.stream.close()
    assert (_in_flight(shared), shared.held.bytes) == (0, 0)


async def test_a_reader_that_is_killed_is_replaced() -> None:
    reader = BodyReader(1)
    shared = replace(make_services(), max_body_bytes=32 * MIB, reader=reader)
    for _ in range(3):
        answers, _ = await _answers(Conversation(shared), request_headers(), request_body(_long()))
        assert answers == ["request_body"]
        process = reader._idle.get()
        assert process is not None
        os.kill(process._child.pid, signal.SIGKILL)
        reader._idle.put(process)
    reader.stop()
    assert reader.restarts == 2


async def test_without_a_reader_a_long_body_is_refused_and_does_not_pass_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = BodyReader(1)
    monkeypatch.setattr("sys.executable", "/bin/false")
    shared = replace(make_services(), max_body_bytes=32 * MIB, reader=reader)
    said = Conversation(shared)
    answers, _ = await _answers(said, request_headers(), request_body(_long()))
    reader.stop()
    assert answers == ["immediate_response"]
    assert shared.recorder.requests == {("", "", "", 503): 1}
    assert _in_flight(shared) == 0


async def test_a_reader_gives_back_the_memory_that_a_long_body_took() -> None:
    reader, before = BodyReader(1), set(children_of(os.getpid()))
    try:
        await reader.read(chat(), Question(CHAT, b"application/json", b""))
        (pid,) = set(children_of(os.getpid())) - before
        small = resident_bytes(pid)
        await reader.read(FAMILIES["prose"](30 * MIB), Question(CHAT, b"application/json", b""))
        await until(lambda: resident_bytes(pid) <= small + 12 * MIB, "it has given the memory back")
    finally:
        reader.stop()
