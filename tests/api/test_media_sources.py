"""Where an engine would fetch images and clips from: found wherever an engine looks for them, and nowhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.body_limits import INLINE, MOST_ITEMS
from fairlead.api.media_sources import NO_DOMAIN, ODD_DOMAIN, domain_of, first_refused
from fairlead.api.prompt import TOO_MANY, Malformed, parse
from tests.api.media_bodies import BODIES, CONTENTS, FETCHED_BY_NOBODY, URL

CHAT = "/v1/chat/completions"


def _sources(body: bytes | dict[str, Any], path: str = CHAT, content_type: bytes = b"") -> tuple[str, ...]:
    prompt = parse(body if isinstance(body, bytes) else json.dumps(body).encode(), path, content_type)
    assert not isinstance(prompt, Malformed), prompt
    return prompt.media_sources


def _of_content(content: Any, path: str = CHAT) -> tuple[str, ...]:
    return _sources({"model": "small", "messages": [{"role": "user", "content": content}]}, path)


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("http://images.example.com/a.png", "images.example.com"),
        ("HTTPS://Images.Example.COM./a.png", "images.example.com"),
        ("https://h", "h"),
        ("https://h:8443?x", "h"),
        (" \nhttp://h/", "h"),
        ("http://127.0.0.1:30000/flush_cache", "127.0.0.1"),
        ("http://[::1]:30000/", "[::1]"),
        ("http://2130706433/", "2130706433"),
    ],
)
def test_a_url_has_the_domain_that_it_names(text: str, domain: str) -> None:
    assert domain_of(text) == domain


@pytest.mark.parametrize(
    "text",
    [
        "http://good@evil/", "http://good:80@evil/", "http://good\\@evil/", "http://good\t.evil/", "http://good\n",
        "http://good%2eevil/", "http://göod/", "http:///evil/", "http://", "http://good:123456/", "http://good:x/",
        "http://" + "g" * 254 + "/", "http://[" + "0:" * 30 + "]/",
    ],
)  # fmt: skip
def test_a_url_that_could_be_read_as_of_two_hosts_has_none_of_them(text: str) -> None:
    assert domain_of(text) == ODD_DOMAIN


@pytest.mark.parametrize(
    "text",
    [
        "file:///dev/zero", "/dev/zero", "dev/zero", "../x.png", "secret.mp4", "ftp://h/", "gopher://h/", "//h/x", "x",
        "http:h", "jar:http://h/", " data:image/png;base64,AAAA",
    ],
)  # fmt: skip
def test_what_is_neither_a_url_nor_in_the_body_has_no_domain(text: str) -> None:
    assert domain_of(text) == NO_DOMAIN


@pytest.mark.parametrize("text", ["data:image/png;base64,AAAA", "DATA:,", "iVBORw0KGgoAAAA", "/9j/4AAQ", "UklGRg", ""])
def test_media_in_the_body_are_fetched_from_nowhere(text: str) -> None:
    assert domain_of(text) is None
    assert _of_content([{"type": "image_url", "image_url": {"url": text}}, {"image_url": text}]) == ()


@pytest.mark.parametrize("content", CONTENTS)
def test_a_medium_that_is_to_be_fetched_is_found_in_every_form(content: Any) -> None:
    assert _of_content(content) == ("evil.example",)


def test_also_where_its_key_or_its_url_is_written_in_escapes() -> None:
    part = b'{"type":"image_url","\\u0069mage_url":{"u\\u0072l":"\\u0068ttp:\\/\\/evil.example\\/x"}}'
    assert _sources(b'{"model":"small","messages":[{"role":"user","content":[%b]}]}' % part) == ("evil.example",)


def test_also_behind_one_that_is_in_the_body() -> None:
    twice = b'{"url":"data:,","url":"http://evil.example"}'
    body = b'{"model":"small","messages":[{"role":"user","content":[{"type":"image_url","image_url":%b}]}]}' % twice
    assert _sources(body) == ("evil.example",)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_also_on_every_path_that_takes_media(path: str, body: dict[str, Any]) -> None:
    assert _sources({"model": "small", **body}, path) == ("evil.example",)


@pytest.mark.parametrize(("name", "value"), [("url", URL), ("url[]", URL), ("image_url", URL), ("image", " " + URL)])
def test_also_in_a_form(name: str, value: str) -> None:
    body = f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n--b--\r\n'.encode()
    assert _sources(body, "/v1/images/edits", b"multipart/form-data; boundary=b") == ("evil.example",)


def test_a_file_in_a_form_is_in_the_body() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\n\x89PNG\xff/http://evil.example\r\n--b--\r\n'
    assert _sources(body, "/v1/images/edits", b"multipart/form-data; boundary=b") == ()


@pytest.mark.parametrize("body", FETCHED_BY_NOBODY)
def test_what_no_engine_fetches_is_no_source(body: dict[str, Any]) -> None:
    assert _sources({"model": "small", **body}) == ()


def test_texts_to_be_embedded_or_ranked_may_be_urls() -> None:
    assert _sources({"model": "image", "input": [URL, URL]}, "/v1/embeddings") == ()
    assert _sources({"model": "image", "query": URL, "documents": [URL, {"text": URL}]}, "/rerank") == ()


_URLS = st.sampled_from([URL, "data:,", "file:///x", "https://good.example/y", ""])
_KEYS = st.sampled_from(["image_url", "video_url", "audio_url", "type", "text", "uuid", "content", "x"])
_PARTS = st.recursive(
    st.dictionaries(_KEYS, st.one_of(_URLS, st.fixed_dictionaries({"url": _URLS}), st.none()), max_size=3),
    lambda inner: st.fixed_dictionaries({"type": st.just("tool_result"), "content": st.lists(inner, max_size=3)}),
    max_leaves=6,
)


def _fetched(parts: list[Any]) -> set[str]:
    """What vLLM would look at, by each key that it knows."""
    found: set[str] = set()
    for part in parts:
        if isinstance(part, dict):
            values = [part.get(key) for key in ("image_url", "video_url", "audio_url")]
            found |= {each for value in values if isinstance(each := _url(value), str)}
            found |= _fetched(part["content"] if isinstance(part.get("content"), list) else [])
    return found


def _url(value: Any) -> Any:
    return value.get("url") if isinstance(value, dict) else value


@given(st.lists(st.one_of(_PARTS, st.just("a text")), max_size=4))
def test_all_that_an_engine_would_fetch_is_found(content: list[Any]) -> None:
    expected = {domain for url in _fetched(content) if (domain := domain_of(url)) is not None}
    assert set(_of_content(content)) == expected


def test_domains_are_allowed_one_by_one() -> None:
    assert first_refused(("a.example", "b.example"), ("b.example",)) == "a.example"
    assert first_refused(("b.example",), ("b.example",)) is None
    assert first_refused(("sub.b.example",), ("b.example",)) == "sub.b.example"
    assert first_refused((), ()) is None


def test_every_domain_may_be_allowed_but_no_file() -> None:
    assert first_refused(("a.example", ODD_DOMAIN), ("*",)) is None
    assert first_refused((NO_DOMAIN, "a.example"), ("*",)) == NO_DOMAIN
    assert first_refused((ODD_DOMAIN,), ("a.example",)) == ODD_DOMAIN


def test_more_domains_than_any_request_has_are_refused() -> None:
    parts = [{"image_url": f"http://h{number}/"} for number in range(65)]
    assert len(_of_content(parts[1:])) == 64
    body = json.dumps({"model": "small", "messages": [{"role": "user", "content": parts}]}).encode()
    assert parse(body, CHAT) is TOO_MANY


def test_a_list_of_more_values_than_can_be_looked_at_is_refused() -> None:
    body = b'{"model":"small","text":"x","image_data":[%b]}' % b",".join([b"0"] * (4 * MOST_ITEMS + 2))
    assert parse(body, "/generate") is TOO_MANY
    short = b'{"model":"small","text":"x","image_data":[%b]}' % b",".join([b"0"] * 10_000)
    assert parse(short, "/generate", limits=INLINE) is TOO_MANY
    assert not isinstance(parse(short, "/generate"), Malformed)


def test_token_ids_of_a_model_that_sees_are_not_counted() -> None:
    ids = b",".join([b"1"] * 600_000)
    assert not isinstance(parse(b'{"model":"image","input":[[%b]]}' % ids, "/pooling"), Malformed)
