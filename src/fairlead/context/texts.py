"""The texts of a request body in the order in which the model reads them, each with its place in the body.

For OpenAI's chat completions, completions and responses, Anthropic's messages, and SGLang's generate. Items that are
not text (tools, tool calls, images) are listed too, as they come between the texts in the engine's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from fairlead.api.spans import JsonPath

_Slice = msgspec.Raw | msgspec.UnsetType
_UNSET: Final = msgspec.UNSET
_QUOTE, _BRACKET = ord('"'), ord("[")
_LEVELS: Final = 2  # a message's parts, and the parts of a tool's result: each level parses the same bytes once more
MOST_TEXTS: Final = 1024  # in a request; one with more is sent unchanged
_TEXT_TYPES: Final = frozenset({"text", "input_text"})


class Text(msgspec.Struct, frozen=True, gc=False):
    """A JSON string with its quotes; or, if `place` is None, anything that must not be changed."""

    raw: bytes
    place: JsonPath | None = None
    role: str = ""  # system, user or tool


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: _Slice = _UNSET
    content: _Slice = _UNSET


class _Message(msgspec.Struct, gc=False):
    role: str = ""
    type: str = ""
    content: _Slice = _UNSET
    output: _Slice = _UNSET  # a function call's output, in the responses API
    tool_calls: _Slice = _UNSET


class _Body(msgspec.Struct, gc=False):
    tools: _Slice = _UNSET
    instructions: _Slice = _UNSET
    system: _Slice = _UNSET
    messages: list[_Message] = []
    input: _Slice = _UNSET
    prompt: _Slice = _UNSET
    text: _Slice = _UNSET


_decode = msgspec.json.Decoder(_Body).decode
_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_part = msgspec.json.Decoder(_Part).decode


def read_texts(body: bytes) -> list[Text] | None:
    """Texts of a request body; None for more than MOST_TEXTS.

    Raises msgspec.DecodeError if it is not such a request.
    """
    texts = list(islice(_texts(_decode(body)), MOST_TEXTS + 1))
    return texts if len(texts) <= MOST_TEXTS else None


def _texts(read: _Body) -> Iterator[Text]:
    if read.tools is not _UNSET:
        yield Text(bytes(read.tools))
    for key, value in (("instructions", read.instructions), ("system", read.system)):
        yield from _of_content(value, (key,), "system")
    yield from _of_messages(read.messages, "messages")
    if read.input is not _UNSET and memoryview(read.input)[0] == _BRACKET:
        yield from _of_messages(_decode_messages(read.input), "input")
    else:
        yield from _of_content(read.input, ("input",), "user")
    for key, value in (("prompt", read.prompt), ("text", read.text)):
        yield from _of_content(value, (key,), "user")


def _of_messages(messages: list[_Message], key: str) -> Iterator[Text]:
    for number, message in enumerate(messages):
        role = _ROLES.get(message.role, "")
        if message.type == "function_call_output":
            role = "tool"
        for field, value in (("content", message.content), ("output", message.output)):
            if role:
                yield from _of_content(value, (key, number, field), role)
            elif value is not _UNSET:
                yield Text(bytes(value))  # the model's own output stays unchanged
        if message.tool_calls is not _UNSET:
            yield Text(bytes(message.tool_calls))


def _of_content(value: _Slice, place: JsonPath, role: str, levels: int = _LEVELS) -> Iterator[Text]:
    if value is _UNSET:
        return
    raw = bytes(value)
    if raw[0] == _QUOTE:
        yield Text(raw, place, role)
    elif raw[0] == _BRACKET and levels:
        for number, item in enumerate(_decode_parts(raw)):
            yield from _of_part(bytes(item), (*place, number), role, levels)
    else:
        yield Text(raw)


def _of_part(raw: bytes, place: JsonPath, role: str, levels: int) -> Iterator[Text]:
    part = _decode_part(raw) if raw[:1] == b"{" else _Part()
    if part.type in _TEXT_TYPES and part.text is not _UNSET and memoryview(part.text)[0] == _QUOTE:
        yield Text(bytes(part.text), (*place, "text"), role)
    elif part.type == "tool_result" and part.content is not _UNSET:
        yield from _of_content(part.content, (*place, "content"), "tool", levels - 1)
    else:
        yield Text(raw)


_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "tool": "tool",
    "function": "tool",
}
