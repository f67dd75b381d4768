"""The texts of a request body in the order in which the model reads them, each with its place in the body.

For OpenAI's chat completions, completions and responses, Anthropic's messages, and SGLang's generate. What is no text
(tools, calls of tools, images) is named too, as it stands between the texts in the engine's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from fairlead.core.spans import Place

_Slice = msgspec.Raw | msgspec.UnsetType
_UNSET: Final = msgspec.UNSET
_QUOTE, _BRACKET = ord('"'), ord("[")
_TEXT_TYPES: Final = frozenset({"text", "input_text"})


class Text(msgspec.Struct, frozen=True, gc=False):
    """A JSON string with its quotes; or, without a place, anything that is not to be changed."""

    raw: bytes
    place: Place | None = None
    role: str = ""  # system, user or tool


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: _Slice = _UNSET
    content: _Slice = _UNSET


class _Message(msgspec.Struct, gc=False):
    role: str = ""
    type: str = ""
    content: _Slice = _UNSET
    output: _Slice = _UNSET  # of a function call, in the responses API
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


def read_texts(body: bytes) -> list[Text]:
    """Texts of a request body. Raises msgspec.DecodeError for one that is no such request."""
    read = _decode(body)
    texts: list[Text] = []
    if read.tools is not _UNSET:
        texts.append(Text(bytes(read.tools)))
    for key, value in (("instructions", read.instructions), ("system", read.system)):
        texts += _of_content(value, (key,), "system")
    texts += _of_messages(read.messages, "messages")
    if read.input is not _UNSET and memoryview(read.input)[0] == _BRACKET:
        texts += _of_messages(_decode_messages(read.input), "input")
    else:
        texts += _of_content(read.input, ("input",), "user")
    for key, value in (("prompt", read.prompt), ("text", read.text)):
        texts += _of_content(value, (key,), "user")
    return texts


def _of_messages(messages: list[_Message], key: str) -> Iterator[Text]:
    for number, message in enumerate(messages):
        role = _ROLES.get(message.role, "")
        if message.type == "function_call_output":
            role = "tool"
        for field, value in (("content", message.content), ("output", message.output)):
            if role:
                yield from _of_content(value, (key, number, field), role)
            elif value is not _UNSET:
                yield Text(bytes(value))  # what the model said itself stays as it is
        if message.tool_calls is not _UNSET:
            yield Text(bytes(message.tool_calls))


def _of_content(value: _Slice, place: Place, role: str) -> Iterator[Text]:
    if value is _UNSET:
        return
    raw = bytes(value)
    if raw[0] == _QUOTE:
        yield Text(raw, place, role)
    elif raw[0] == _BRACKET:
        for number, item in enumerate(_decode_parts(raw)):
            yield from _of_part(bytes(item), (*place, number), role)
    else:
        yield Text(raw)


def _of_part(raw: bytes, place: Place, role: str) -> Iterator[Text]:
    part = _decode_part(raw) if raw[:1] == b"{" else _Part()
    if part.type in _TEXT_TYPES and part.text is not _UNSET and memoryview(part.text)[0] == _QUOTE:
        yield Text(bytes(part.text), (*place, "text"), role)
    elif part.type == "tool_result" and part.content is not _UNSET:
        yield from _of_content(part.content, (*place, "content"), "tool")
    else:
        yield Text(raw)


_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "tool": "tool",
    "function": "tool",
}
