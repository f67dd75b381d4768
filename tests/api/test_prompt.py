"""What is read of a body, for each API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead.api.body_limits import MOST_ANSWERS
from fairlead.api.paths import GENERATION_PATHS, generation_path
from fairlead.api.prompt import Malformed, Prompt, parse


def read(path: str = "/v1/chat/completions", **body: Any) -> Prompt:
    prompt = parse(json.dumps({"model": "m"} | body, ensure_ascii=False).encode(), path)
    assert isinstance(prompt, Prompt)
    return prompt


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "needle"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "needle"}]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "tool", "tool_call_id": "1", "content": "needle"}]}),
        ("/v1/completions", {"prompt": "needle"}),
        ("/v1/completions", {"prompt": ["needle", "other"]}),
        ("/v1/responses", {"input": "needle", "instructions": "be brief"}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "needle"}]}]}),
        ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "1", "output": "needle"}]}),
        ("/v1/embeddings", {"input": ["needle"]}),
        ("/v1/messages", {"system": "needle", "messages": []}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "needle"}]}]}),
        ("/generate", {"text": "needle"}),
    ],
)
def test_the_text_of_every_api_is_found(path: str, body: dict[str, Any]) -> None:
    assert b"needle" in read(path, **body).text


@pytest.mark.parametrize(
    ("path", "key"),
    [("/v1/completions", "prompt"), ("/generate", "input_ids"), ("/inference/v1/generate", "token_ids")],
)
def test_tokens_given_instead_of_text_are_part_of_the_prompt(path: str, key: str) -> None:
    assert b"101, 102" in read(path, **{key: [101, 102]}).text


def test_tools_stand_before_the_messages_as_in_chat_templates() -> None:
    text = read(messages=[{"role": "user", "content": "needle"}], tools=[{"name": "hammer"}]).text
    assert text.index(b"hammer") < text.index(b"needle")


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    first = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}]
    later = [*first, {"role": "assistant", "content": "1"}, {"role": "user", "content": "two"}]
    assert read(messages=later).text.startswith(read(messages=first).text)


def test_parameters_that_are_not_prompt_do_not_change_the_prompt() -> None:
    messages = [{"role": "user", "content": "one"}]
    assert read(messages=messages, temperature=0.5, user="u", metadata={"a": "b"}).text == read(messages=messages).text


def test_the_user_text_is_the_last_user_message() -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "user", "content": "last"},
        {"role": "tool", "content": "x"},
    ]
    assert read(messages=messages).user_text == b'"last"'


def test_an_image_counts_once_whatever_its_bytes() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    prompt = read(messages=[{"role": "user", "content": [image, {"type": "text", "text": "what is it"}]}])
    assert prompt.media == 1
    assert len(prompt.text) < 900


def test_two_images_have_different_prefixes() -> None:
    def text(fill: str) -> bytes:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + fill * 10_000}}
        return read(messages=[{"role": "user", "content": [image]}]).text

    assert text("A") != text("B")


@pytest.mark.parametrize("listed", ["a, b", ["a", "b"]])
def test_attempted_models_are_a_list_or_a_text(listed: object) -> None:
    assert read(messages=[], metadata={"attempted_models": listed}).attempted_models == ("a", "b")


@pytest.mark.parametrize("metadata", [None, 3, [], {"attempted_models": 3}, {"attempted_models": {"a": 1}}, {}])
def test_odd_metadata_counts_as_no_attempt(metadata: object) -> None:
    assert read(messages=[], metadata=metadata).attempted_models == ()


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v1/chat/completions", {"max_completion_tokens": 7, "max_tokens": 9}, 7),
        ("/v1/responses", {"max_output_tokens": 7}, 7),
        ("/generate", {"sampling_params": {"max_new_tokens": 7}}, 7),
        ("/v1/completions", {"max_tokens": "many"}, None),
        ("/v1/embeddings", {"input": "text"}, 0),
        ("/v1/embeddings", {"input": "text", "max_tokens": 7}, 0),
        ("/v1/completions", {"max_tokens": -1}, None),
        ("/v1/completions", {}, None),
    ],
)
def test_the_output_limit_is_read_where_it_makes_sense(path: str, body: dict[str, Any], limit: int | None) -> None:
    assert read(path, **body).max_output_tokens == limit


@pytest.mark.parametrize(
    ("path", "body", "answers"),
    [
        ("/v1/chat/completions", {"messages": []}, 1),
        ("/v1/chat/completions", {"messages": [], "n": 8}, 8),
        ("/v1/chat/completions", {"messages": [], "n": 999_999_999}, MOST_ANSWERS),
        ("/v1/chat/completions", {"messages": [], "n": -3}, 1),
        ("/v1/chat/completions", {"messages": [], "n": "many"}, 1),
        ("/v1/completions", {"prompt": "one, [two]", "n": 2, "best_of": 5}, 5),
        ("/v1/completions", {"prompt": ["one", 'two "quoted"', "three"], "n": 2}, 6),
        ("/v1/completions", {"prompt": [1, 2, 3]}, 1),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}, 2),
        ("/v1/completions", {"prompt": []}, 1),
        ("/generate", {"text": ["one", "two"], "sampling_params": {"n": 3}}, 6),
        ("/generate", {"input_ids": [[1], [2]], "sampling_params": [{"n": 3}]}, 6),
        ("/generate", {"text": "one", "sampling_params": [{"n": 3, "max_new_tokens": 1}]}, 3),
        ("/generate", {"text": "one", "sampling_params": {"beam_width": 4}}, 4),
        ("/generate", {"text": ["one", "two"], "sampling_params": [{"beam_width": 4}, {"max_new_tokens": 9}]}, 8),
        ("/generate", {"text": "one", "sampling_params": [{}] * 5000}, MOST_ANSWERS),
        ("/generate", {"text": "one", "sampling_params": []}, 1),
        ("/v1/responses", {"input": "needle", "text": {"format": {"type": "text"}}}, 1),
    ],
)
def test_the_answers_that_a_body_asks_for_are_counted(path: str, body: dict[str, Any], answers: int) -> None:
    assert read(path, **body).answers == answers


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ('"128"', 128), ("128.0", 128), ('"128.0"', 128), ('" 1_28 "', 128), ('"+128"', 128), ("1.28e2", 128),
        (r'"\u00312\u0038"', 128), ('"0128"', 128), ("null", 1), ("true", 1), ("[128]", 1), ('"nan"', 1),
        ("128." + 99 * "0", MOST_ANSWERS), ("1" + 99 * "0", MOST_ANSWERS), ('"' + 99 * " " + '128"', MOST_ANSWERS),
    ],
)  # fmt: skip
def test_a_number_of_answers_is_read_in_every_form_that_engines_take(written: str, number: int) -> None:
    """As pydantic does in its lax mode; what is too long to be read may be any number."""
    body = b'{"model":"m","messages":[],"max_tokens":%b,"n":%b}' % (written.encode(), written.encode())
    prompt = parse(body, "/v1/chat/completions")
    assert isinstance(prompt, Prompt)
    assert prompt.answers == number
    assert prompt.max_output_tokens == (128 if number == 128 else None)


def test_an_error_names_the_parameter() -> None:
    assert parse(b'{"model": 3}', "/v1/completions") == Malformed("Expected `str | null`, got `int` at model", "model")


@pytest.mark.parametrize("path", sorted(GENERATION_PATHS))
@pytest.mark.parametrize("form", ["{}", "{}?api-version=1", "%2F{}"])
def test_a_generation_path_is_known_in_every_form_that_an_engine_accepts(path: str, form: str) -> None:
    written = form.format(path.removeprefix("/") if form.startswith("%") else path)
    assert generation_path(written) == path


def test_other_paths_are_not_read() -> None:
    assert generation_path("/v1/audio/speech") is None


def test_a_tool_result_may_hold_an_image() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 50_000}}
    result = {"type": "tool_result", "content": [image, {"type": "text", "text": "needle"}]}
    prompt = read("/v1/messages", messages=[{"role": "user", "content": [result]}])
    assert (prompt.media, b"needle" in prompt.text, len(prompt.text) < 900) == (1, True, True)


def test_a_list_that_mixes_objects_with_other_values_is_left_to_the_engine() -> None:
    assert b"needle" in read("/v1/responses", input=[{"role": "user"}, "needle", 3]).text


def test_one_image_or_one_odd_list_among_many_messages_changes_no_other_message() -> None:
    def content(number: int) -> list[dict[str, str]]:
        return [{"type": "text", "text": f"words {number}"}]

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    plain = [{"role": "user", "content": content(number)} for number in range(50)]
    before = read(messages=plain).text
    with_image = read(messages=[*plain, {"role": "user", "content": [image]}])
    assert (with_image.media, with_image.text.startswith(before), len(with_image.text) - len(before) < 700) == (
        1,
        True,
        True,
    )
    assert read(messages=[*plain, {"role": "user", "content": ["odd", {"type": "text"}]}]).text.startswith(before)


def test_a_key_that_is_no_text_is_refused_where_keys_matter() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":[{"k\xff":"a","image":1}]}]}'
    assert isinstance(parse(body, "/v1/chat/completions"), Malformed)


def test_what_a_user_says_beside_an_image_is_the_users_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1000}}
    prompt = read(messages=[{"role": "user", "content": [{"type": "text", "text": "何？"}, image]}])
    assert prompt.user_text == '"何？"'.encode()


@pytest.mark.parametrize(
    ("path", "body", "answers"),
    [
        ("/v1/chat/completions", {"messages": []}, 1),
        ("/v1/chat/completions", {"messages": [], "n": 1}, 1),
        ("/v1/chat/completions", {"messages": [], "n": None}, 1),
        ("/v1/chat/completions", {"messages": [], "n": 2}, 2),
        ("/v1/completions", {"prompt": "a", "best_of": 3}, 3),
        ("/v1/completions", {"prompt": ['one, ["two"], three']}, 1),
        ("/v1/completions", {"prompt": ["one", "two"]}, 2),
        ("/v1/completions", {"prompt": [1, 2]}, 1),
        ("/v1/completions", {"prompt": [[1, 2]]}, 1),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}, 2),
        ("/generate", {"text": ["one", "two"]}, 2),
        ("/generate", {"input_ids": [[1], [2]]}, 2),
        ("/generate", {"text": "one", "sampling_params": {"n": 4}}, 4),
        ("/generate", {"text": "one", "sampling_params": {"max_new_tokens": 4}}, 1),
        ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": "a"}]] * 2}, 2),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "a"}] * 2}, 1),
    ],
)
@pytest.mark.parametrize("layout", [None, (",", ":"), 2], ids=["python", "compact", "indented"])
def test_an_answer_of_several_texts_is_known_by_its_request(
    path: str, body: dict[str, Any], answers: int, layout: tuple[str, str] | int | None
) -> None:
    indent, separators = (layout, None) if isinstance(layout, int) else (None, layout)
    written = json.dumps({"model": "m"} | body, indent=indent, separators=separators).encode()
    prompt = parse(written, path)
    assert isinstance(prompt, Prompt)
    assert prompt.answers == answers
    assert prompt.several is (answers > 1 or path.endswith("render"))


@pytest.mark.parametrize("layout", [None, (",", ":"), 2], ids=["python", "compact", "indented"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("image", [False, True])
def test_a_turn_goes_on_from_the_last_one_wherever_anthropics_cache_marks_stand(
    layout: tuple[str, str] | int | None, first: bool, image: bool
) -> None:
    """Claude's clients mark the newest messages; the marks of older ones are gone in the next turn."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}

    def text_of(*said: str, marked: int) -> bytes:
        messages = []
        for number, words in enumerate(said):
            part: dict[str, Any] = {
                "type": "text",
                "text": f'{words} says \\"cache_control\\": {{}}, "cache_control": {{}}',
            }
            if number == marked:
                part = mark | part if first else part | mark
            parts = [part, {"type": "image", "source": source}] if image else [part]
            messages.append({"role": "user", "content": parts})
        indent, separators = (layout, None) if isinstance(layout, int) else (None, layout)
        body = json.dumps({"model": "m", "messages": messages}, indent=indent, separators=separators).encode()
        prompt = parse(body, "/v1/messages")
        assert isinstance(prompt, Prompt)
        return prompt.text

    assert text_of("one", "two", marked=1).startswith(text_of("one", marked=0))
    assert text_of("one", "two", marked=1) == text_of("one", "two", marked=-1)


def think(**message: Any) -> Prompt:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "so", **message}]
    return read("/v1/chat/completions", messages=[*messages, {"role": "user", "content": "on"}])


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_that_comes_back_is_of_the_prompt(name: str) -> None:
    """Templates write it before the content: an engine has no prefix cached that has another one."""
    prompt = think(**{name: "because"})
    assert prompt.text == b'"user"\x1f"go"\x1f"assistant"\x1f"because"\x1f"so"\x1f"user"\x1f"on"'
    assert prompt.reply is not None
    assert prompt.text[: prompt.reply[0]] == b'"user"\x1f"go"'
    assert prompt.text[prompt.reply[0] : prompt.reply[1]] == b'\x1f"assistant"\x1f"because"\x1f"so"'
    assert prompt.user_text == b'"on"'


@pytest.mark.parametrize("nothing", [None, ""])
def test_reasoning_that_is_empty_is_as_if_it_were_not_there(nothing: str | None) -> None:
    assert think(reasoning_content=nothing, reasoning=nothing).text == think().text


def test_reasoning_is_of_a_prompt_with_images_too() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = think(reasoning_content="because", content=[{"type": "text", "text": "so"}, image]).text
    assert b'"assistant"\x1f"because"\x1f"text"\x1f"so"' in text
