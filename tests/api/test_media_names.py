"""Names of images and clips: what of a body no engine may see."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.media_names import names_in
from fairlead.api.prompt import Malformed, parse
from fairlead.api.spans import MOST_SPANS, spliced

CHAT = "/v1/chat/completions"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def _without_names(body: bytes) -> bytes:
    spans = names_in(body)
    assert spans is not None
    return spliced(body, [(start, end, b"null") for start, end in spans])


def _chat(content: Any, **more: Any) -> bytes:
    return json.dumps({"model": "small", "messages": [{"role": "user", "content": content}], **more}).encode()


def _names_of(body: bytes, path: str = CHAT) -> list[Any]:
    prompt = parse(body, path)
    assert not isinstance(prompt, Malformed)
    return [json.loads(body[start:end]) for start, end in prompt.media_names]


def _blanked(value: Any) -> Any:
    if isinstance(value, list):
        return [_blanked(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: None if key == "uuid" and not isinstance(inner, list | dict) else _blanked(inner)
        for key, inner in value.items()
    }


_TEXT = st.sampled_from(["uuid", 'uuid": "x', "\\", '"', "é", "", "x"])
_KEYS = st.sampled_from(["uuid", "x", '"uuid', "uuid\\", "image"])
_DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), _TEXT),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(_DOCUMENTS, st.sampled_from([None, 1]), st.booleans())
def test_every_scalar_of_that_key_goes_and_nothing_else_changes(
    document: Any, indent: int | None, escapes: bool
) -> None:
    written = json.dumps(document, indent=indent)
    if escapes:
        written = written.replace('"uuid"', '"\\u0075u\\u0069d"')
    assert json.loads(_without_names(written.encode())) == _blanked(json.loads(written))


@pytest.mark.parametrize(
    "content",
    [
        [IMAGE | {"uuid": "a"}],
        [{"type": "image_url", "image_url": None, "uuid": "a"}],
        [{"type": "image_url", "uuid": "a"}],
        [{"type": "image_embeds", "image_embeds": None, "uuid": "a"}],
        ["a text among parts", IMAGE | {"uuid": "a"}],
        [{"type": "tool_result", "content": [IMAGE | {"uuid": "a"}]}],
    ],
    ids=["with its image", "for a cached one", "alone", "of embeddings", "after a text", "in a tool's result"],
)
def test_the_name_of_an_image_is_found_wherever_an_engine_takes_it(content: Any) -> None:
    assert _names_of(_chat(content)) == ["a"]


@pytest.mark.parametrize("path", ["/pooling", "/v1/score", "/rerank", "/tokenize"])
def test_also_on_paths_whose_messages_are_not_read(path: str) -> None:
    assert _names_of(_chat([IMAGE | {"uuid": "a"}]), path) == ["a"]


@pytest.mark.parametrize("content", [[{"type": "input_image", "uuid": "a"}], ["text", IMAGE | {"uuid": "a"}]])
@pytest.mark.parametrize(("path", "key"), [("/v1/responses", "input"), ("/v1/messages", "system")])
def test_also_of_lists_beside_the_messages(path: str, key: str, content: Any) -> None:
    for value in (content, [{"role": "user", "content": content}]):
        assert _names_of(json.dumps({"model": "small", "messages": [], key: value}).encode(), path) == ["a"]


def test_also_of_the_media_of_tokens() -> None:
    body = b'{"token_ids":[1,2],"content_parts":[{"type":"image_url","uuid":"a"}],"sampling_params":{}}'
    assert _names_of(body, "/inference/v1/generate") == ["a"]


def test_hashes_of_the_media_of_tokens_are_refused() -> None:
    read = parse(b'{"token_ids":[1],"features":{"mm_hashes":{"image":["a"]}}}', "/inference/v1/generate")
    assert isinstance(read, Malformed)
    assert read.param == "features"


@pytest.mark.parametrize(
    "body",
    [
        _chat("hello", metadata={"uuid": "a"}),
        _chat(
            [{"type": "text", "text": "hello"}], tools=[{"parameters": {"properties": {"uuid": {"type": "string"}}}}]
        ),
        _chat([IMAGE], tools=[{"parameters": {"properties": {"uuid": {"type": "string"}}}}]),
    ],
    ids=["metadata", "a tool without images", "a tool beside an image"],
)
def test_what_names_no_medium_stays(body: bytes) -> None:
    assert _names_of(body) == []


def test_documents_of_a_reranker_keep_their_ids() -> None:
    assert _names_of(b'{"model":"small","query":"q","documents":[{"uuid":"a","text":"x"}]}', "/rerank") == []


def test_a_name_does_not_tell_prompts_apart() -> None:
    named, plain = parse(_chat([IMAGE | {"uuid": "a"}]), CHAT), parse(_chat([IMAGE]), CHAT)
    assert not isinstance(named, Malformed)
    assert not isinstance(plain, Malformed)
    assert named.text == plain.text


def test_more_names_than_can_be_read_are_refused() -> None:
    body = b'{"model":"small","messages":[{"role":"user","content":[{"image":0,%b}]}]}'
    names = [b'"uuid":%d' % number for number in range(MOST_SPANS + 1)]
    assert not isinstance(parse(body % b",".join(names[1:]), CHAT), Malformed)
    assert isinstance(parse(body % b",".join(names), CHAT), Malformed)
