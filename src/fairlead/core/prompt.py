"""What a request body asks for: one JSON parse, for every API that the pool's engines speak.

The parse keeps long texts as undecoded slices of the body (`msgspec.Raw`): routing needs their bytes and length, never
their characters. Checks that an engine makes itself (roles, sampling parameters) are left to the engine.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import xxhash

GENERATION_PATHS: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/generate"}
)
_MODEL_OPTIONAL_PATHS: Final = frozenset({"/generate"})  # SGLang's own API does not name the model

MEDIA_TOKENS: Final = 1000  # an image or a clip, whatever its bytes
_SEPARATOR: Final = b"\x1f"
_USER: Final = b'"user"'


class Malformed(msgspec.Struct, frozen=True):
    """A body that cannot be routed: what is wrong, and the parameter it is wrong in (OpenAI's `param`)."""

    message: str
    param: str | None = None


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What the body says. `text` is what the model will read, in order, as JSON-escaped UTF-8."""

    model: str | None
    text: bytes
    user_text: bytes  # the last user message, or all of the prompt where there are no messages
    media: int
    attempted_models: tuple[str, ...]
    max_output_tokens: int | None
    has_kv_transfer_params: bool


_Slice = msgspec.Raw | msgspec.UnsetType  # of the body, undecoded
_Piece = msgspec.Raw | bytes
_UNSET: Final = msgspec.UNSET
_NULL: Final = msgspec.Raw(b"null")
_OPENING_BRACKET: Final = ord("[")
_OPENING_BRACE: Final = ord("{")
_OF_A_LIST: Final = (b"[",)
_first_byte: Final = Struct("c").unpack_from  # half the time of a memoryview


class _Message(msgspec.Struct, gc=False):
    role: msgspec.Raw = _NULL
    content: msgspec.Raw = _NULL
    tool_calls: _Slice = _UNSET


class _Part(msgspec.Struct, gc=False):
    """Of a content part, what is no text: media, and `content`, which may hold further parts."""

    image_url: _Slice = _UNSET
    image: _Slice = _UNSET
    input_audio: _Slice = _UNSET
    audio_url: _Slice = _UNSET
    video_url: _Slice = _UNSET
    file: _Slice = _UNSET
    file_data: _Slice = _UNSET
    source: _Slice = _UNSET
    content: _Slice = _UNSET


class _Body(msgspec.Struct, gc=False):
    model: str | None = None
    messages: list[_Message] | None = None
    system: _Slice = _UNSET  # Anthropic
    instructions: _Slice = _UNSET  # Responses
    tools: _Slice = _UNSET
    prompt: _Slice = _UNSET  # completions
    input: _Slice = _UNSET  # Responses, embeddings
    text: _Slice = _UNSET  # SGLang
    input_ids: _Slice = _UNSET  # SGLang
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    sampling_params: Any = None
    metadata: Any = None
    kv_transfer_params: _Slice = _UNSET


_decode = msgspec.json.Decoder(_Body).decode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode
_decode_lists = msgspec.json.Decoder(list[list[_Part]]).decode
_decode_fields = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_MEDIA_KEYS: Final = frozenset(_Part.__struct_fields__) - {"content"}
_TEXT_ALONE: Final = _Part()
_LIST_OF_OBJECTS: Final = re.compile(rb"\s*\[\s*\{")


def generation_path(path: str) -> str | None:
    """The path of a generation API, without its query and percent-escapes, or None for any other path."""
    path = path.partition("?")[0]
    if "%" in path:  # an engine would decode it, so an escaped path must not pass unread
        path = unquote(path)
    return path if path in GENERATION_PATHS else None


def parse(body: bytes, path: str) -> Prompt | Malformed:
    """Read a request body of one of GENERATION_PATHS."""
    try:
        read = _decode(body)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        return Malformed(f"{what} at {where.strip('.`') or 'the top level'}", where.strip(".`") or None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Malformed(f"The body is not valid JSON: {error}")
    if not read.model and path not in _MODEL_OPTIONAL_PATHS:
        return Malformed(
            "The body names no model; set model to a served model or a route (see GET /v1/models)", "model"
        )
    try:
        pieces, user_text, media = _pieces(read)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # in what was only passed over before
        return Malformed(f"The body is not valid JSON: {error}")
    text = _SEPARATOR.join(pieces)
    return Prompt(
        model=read.model,
        text=text,
        user_text=text if user_text is None else bytes(user_text),
        media=media,
        attempted_models=_attempted(read.metadata),
        max_output_tokens=_output_limit(read),
        has_kv_transfer_params=read.kv_transfer_params is not _UNSET,
    )


def _pieces(read: _Body) -> tuple[list[_Piece], _Piece | None, int]:
    """The prompt's parts in the order in which chat templates place them, the last user message, and media."""
    pieces: list[_Piece] = []
    user_text: _Piece | None = None
    media = 0
    if read.tools is not _UNSET:
        pieces.append(read.tools)
    for part in (read.instructions, read.system):
        if part is not _UNSET:
            media += _add(part, pieces)
    messages = read.messages or ()
    append = pieces.append
    lists = [message.content for message in messages if _first_byte(message.content) == _OF_A_LIST]
    reads_lists = lists and not _are_text_alone(lists)
    for message in messages:
        content, tool_calls = message.content, message.tool_calls
        append(message.role)
        if reads_lists and _first_byte(content) == _OF_A_LIST:
            media += _add(content, pieces)
        else:
            append(content)
        if tool_calls is not _UNSET:
            append(tool_calls)
    for message in reversed(messages):
        if bytes(message.role) == _USER and message.content is not _NULL:
            user_text = message.content
            break
    for part in (read.prompt, read.input, read.text, read.input_ids):
        if part is not _UNSET:
            media += _add(part, pieces)
    return pieces, user_text, media


def _are_text_alone(lists: list[msgspec.Raw]) -> bool:
    """Whether no list of content parts has media in it: in one parse, as agents send hundreds of short lists."""
    try:
        read = _decode_lists(b"[%b]" % b",".join(lists))
    except msgspec.ValidationError:  # other values among the parts
        return False
    return all(parts.count(_TEXT_ALONE) == len(parts) for parts in read)


def _add(value: msgspec.Raw, pieces: list[_Piece]) -> int:
    """Append the text of a JSON value; images and clips, counted, are stood for by a digest of their bytes."""
    parts = _parts(memoryview(value))
    if parts.count(_TEXT_ALONE) == len(parts):
        pieces.append(value)
        return 0
    media = 0
    for part in _decode_fields(value):
        for key, inner in part.items():
            if key in _MEDIA_KEYS:
                pieces.append(xxhash.xxh3_64_digest(memoryview(inner)))
                media += 1
            elif key == "content":  # of a tool's result, or of an item of the Responses API
                media += _add(inner, pieces)
            else:
                pieces.append(inner)
    return media


def _parts(view: memoryview) -> list[_Part]:
    """The parts of a JSON list of objects; none for any other value."""
    if view[0] != _OPENING_BRACKET or (view[1] != _OPENING_BRACE and not _LIST_OF_OBJECTS.match(view)):
        return []
    try:
        return _decode_parts(view)
    except msgspec.ValidationError:  # objects mixed with other values: for the engine to judge
        return []


def _attempted(metadata: Any) -> tuple[str, ...]:
    """`metadata.attempted_models`, a list of names or one string with commas; anything else counts as none."""
    if not isinstance(metadata, dict):
        return ()
    value = metadata.get("attempted_models")
    if isinstance(value, str):
        return split_models(value)
    if isinstance(value, list):
        return tuple([name for name in value if isinstance(name, str)])
    return ()


def split_models(value: str) -> tuple[str, ...]:
    """Model names of a comma-separated list; empty ones are dropped, repeated ones kept."""
    return tuple([name.strip() for name in value.split(",") if name.strip()])


def _output_limit(read: _Body) -> int | None:
    sampling = read.sampling_params if isinstance(read.sampling_params, dict) else {}
    for limit in (
        read.max_completion_tokens, read.max_output_tokens, read.max_tokens, sampling.get("max_new_tokens"),
    ):  # fmt: skip
        if type(limit) is int and limit > 0:
            return limit
    return None
