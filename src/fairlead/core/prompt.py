"""What a request body asks for: one JSON parse, for every API that the pool's engines speak.

The parse keeps long texts as undecoded slices of the body (`msgspec.Raw`): routing needs their bytes and length, never
their characters. Checks that an engine makes itself (roles, sampling parameters) are left to the engine.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import xxhash

GENERATION_PATHS: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/generate"}
)
_MODEL_OPTIONAL_PATHS: Final = frozenset({"/generate"})  # SGLang's own API does not name the model

MEDIA_TOKENS: Final = 1000  # an image or a clip, whatever its bytes
_MEDIA_RUN: Final = re.compile(rb"[A-Za-z0-9+/=_\-]{1024,}")  # base64 data; no prose has words this long
_SEPARATOR: Final = b"\x1f"


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


class _Message(msgspec.Struct, gc=False):
    role: Any = None
    content: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct, gc=False):
    model: str | None = None
    messages: list[_Message] | None = None
    system: msgspec.Raw = msgspec.Raw()  # Anthropic
    instructions: msgspec.Raw = msgspec.Raw()  # Responses
    tools: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()  # completions
    input: msgspec.Raw = msgspec.Raw()  # Responses, embeddings
    text: msgspec.Raw = msgspec.Raw()  # SGLang
    input_ids: msgspec.Raw = msgspec.Raw()  # SGLang
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    sampling_params: Any = None
    metadata: Any = None
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Body).decode


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
    pieces, user_text = _pieces(read)
    text = _SEPARATOR.join(pieces)
    media = 0
    if b"base64" in text or b"input_audio" in text:
        text, media = _MEDIA_RUN.subn(_digest, text)
    return Prompt(
        model=read.model,
        text=text,
        user_text=user_text if user_text is not None else text,
        media=media,
        attempted_models=_attempted(read.metadata),
        max_output_tokens=_output_limit(read),
        has_kv_transfer_params=len(memoryview(read.kv_transfer_params)) > 0,
    )


def _pieces(read: _Body) -> tuple[list[bytes], bytes | None]:
    """The prompt's parts in the order in which chat templates place them, and the last user message."""
    pieces = [bytes(part) for part in (read.tools, read.instructions, read.system)]
    user_text = None
    for message in read.messages or ():
        content = bytes(message.content)
        pieces.append(str(message.role).encode(errors="replace"))
        pieces.append(content)
        pieces.append(bytes(message.tool_calls))
        if message.role == "user":
            user_text = content
    pieces.extend([bytes(part) for part in (read.prompt, read.input, read.text, read.input_ids)])
    return [piece for piece in pieces if piece], user_text


def _digest(run: re.Match[bytes]) -> bytes:
    return xxhash.xxh3_64_digest(run.group())


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
    limits = (read.max_completion_tokens, read.max_output_tokens, read.max_tokens, sampling.get("max_new_tokens"))
    return next((limit for limit in limits if type(limit) is int and limit > 0), None)
