"""What a request body asks for: one JSON parse, for every API that the pool's engines speak.

The parse keeps long texts as undecoded slices of the body (`msgspec.Raw`): routing needs their bytes and length, never
their characters. Checks that an engine makes itself (roles, sampling parameters) are left to the engine.

The work is linear in the bytes, whatever they say: a value is parsed once, and once more for each of three levels of
content within content. A body with more messages, parts or values than a limit is refused before they become objects.
"""

from __future__ import annotations

from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.api.body_limits import MOST_ITEMS, MOST_NAME_CHARACTERS, OF_ANY, Limits
from fairlead.api.cache_keys import cache_key, reads_otherwise
from fairlead.api.json_body import (
    UNREADABLE,
    UNSET,
    Reserved,
    answers_of,
    asks_of_prompt,
    attempted,
    conversations_in,
    decode,
    decode_other,
    output_limit,
    sampling_of,
    text_of,
    wants_usage,
)
from fairlead.api.media import Media
from fairlead.api.media_names import may_have_media, names_in
from fairlead.api.media_sources import source_of_field, sources_of, sources_of_other
from fairlead.api.multipart import field_spans
from fairlead.api.paths import (
    EMBEDDINGS,
    GENERATION_PATHS,
    INVOCATIONS,
    MESSAGES,
    MODEL_OPTIONAL_PATHS,
    TOKENIZER_PATHS,
)
from fairlead.api.prompt_pieces import pieces_of, placed, reply_span, without_cache_marks
from fairlead.api.reserved import RESERVED_KEYS, carries, may_carry
from fairlead.api.spans import Span

_SEPARATOR: Final = b"\x1f"
_MOST_NAME_BYTES: Final = 12 * MOST_NAME_CHARACTERS + 2  # in JSON, with each character as two escapes
_MOST_URL_BYTES: Final = 8192  # of a form's field that are looked at
_GATEWAY_ONLY: Final = "only the gateway may set it; leave it out"


class Malformed(msgspec.Struct, frozen=True):
    """A body that cannot be routed: what is wrong, and the parameter it is wrong in (OpenAI's `param`)."""

    message: str
    param: str | None = None


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What the body says. `text` is what the model will read, in order, as JSON-escaped UTF-8."""

    model: str | None
    text: bytes
    user_text: bytes  # the last user message, or all of the prompt where there are no messages
    media: int  # images and clips
    attempted_models: tuple[str, ...]
    max_output_tokens: int | None
    reserved: tuple[str, ...] = ()  # keys at the top level that no engine may see from a client
    streams: bool = False
    with_usage: bool = False  # as the last event of a stream
    model_span: Span | None = None  # in a form; in JSON it is looked for only where it must change
    cache_key: bytes = b""  # requests that differ in it share no cached prefix, whatever their text
    placed: tuple[Media, ...] = ()  # the first of the images and clips
    has_tools: bool = False
    adapter: str = ""  # that `lora_path` names, of the model (SGLang); empty: none, or no plain name
    is_all: bool = True  # that the engine reads; else it cuts the text, or reads what the text does not have
    is_told: bool = False  # in the answer, or its tokens' probabilities: no cache is read for it
    answers: int = 1  # that it asks for
    several: bool = False  # texts that the engine makes at the same time: their tokens came side by side
    digest: int = 0  # of all that the client sent, but for its `metadata`; 0: not known
    media_names: tuple[Span, ...] = ()  # in the body: no engine may see them from a client
    reply: Span | None = None  # in the text: the end of all that the last assistant's message answers, and its own end
    cache_salt: bytes = b""  # that the client wrote, as JSON; empty: none
    media_sources: tuple[str, ...] = ()  # domains that the engine would fetch media from, see `api.media_sources`


TOO_MANY: Final = Malformed(
    f"The body has too many messages, content parts or nested values; send at most {MOST_ITEMS} objects and lists"
)
_LONG_NAME: Final = Malformed(f"The model's name is longer than {MOST_NAME_CHARACTERS} characters", "model")
_MANY_NAMES: Final = Malformed(
    "The body names more images and clips (uuid) than can be read; leave their names out", "uuid"
)
_OPAQUE: Final = Prompt(None, b"", b"", 0, (), None)


def parse(body: bytes, path: str, content_type: bytes = b"", limits: Limits = OF_ANY) -> Prompt | Malformed:
    """Read a request body that was sent to `path` (see `api.paths.plain_path`).

    TOO_MANY, the object, is the answer to more messages or parts than `limits`, before any work is done on each.
    """
    if path not in GENERATION_PATHS:
        if content_type[:20].lower().startswith(b"multipart/form-data"):
            return _parse_form(body, content_type)
        return _parse_other(body, path, content_type, limits)
    try:
        read = decode(body)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        return Malformed(f"{what} at {where.strip('.`') or 'the top level'}", where.strip(".`") or None)
    except UNREADABLE as error:
        return _no_json(error)
    if not read.model and path not in MODEL_OPTIONAL_PATHS:
        return Malformed(
            "The body names no model; set model to a served model or a route (see GET /v1/models)", "model"
        )
    if read.model is not None and len(read.model) > MOST_NAME_CHARACTERS:
        return _LONG_NAME
    if read.messages is not None and len(read.messages) > limits.items:
        return TOO_MANY
    reserved = _reserved(read)
    if isinstance(reserved, Malformed):
        return reserved
    try:
        found = pieces_of(read, limits)
    except UNREADABLE as error:  # in what was only passed over before
        return _no_json(error)
    if found is None:
        return TOO_MANY
    pieces, user_text, media, reply, has_parts, elsewhere = found
    media_names = names_in(body) if has_parts or read.content_parts is not UNSET else ()
    if media_names is None:
        return _MANY_NAMES
    sources: tuple[str, ...] | None = ()
    has_data = not (read.image_data is read.video_data is read.audio_data is UNSET)
    if elsewhere or has_data or path in MODEL_OPTIONAL_PATHS:
        sources = sources_of(read, elsewhere, body, limits.values, is_any=path == INVOCATIONS)
    if sources is None:
        return TOO_MANY
    if path == MESSAGES:
        pieces = without_cache_marks(pieces)
    adapter = "" if read.lora_path is UNSET else _plain_name(read.lora_path)
    text, key, sampling = _SEPARATOR.join(pieces), cache_key(read, adapter), sampling_of(read)
    answers = answers_of(read, sampling)
    return Prompt(
        read.model,
        text,
        text if user_text is None else bytes(user_text),
        len(media),
        () if read.metadata is UNSET else attempted(read.metadata),
        0 if path == EMBEDDINGS else output_limit(read, sampling),
        reserved,
        read.stream is not UNSET and bytes(read.stream) == b"true",
        read.stream_options is not UNSET and wants_usage(read.stream_options),
        cache_key=key,
        placed=placed(media, pieces) if media else (),
        has_tools=read.tools is not UNSET,
        adapter=adapter,
        is_all=not (key and reads_otherwise(read)),
        is_told=asks_of_prompt(read, sampling),
        answers=answers,
        several=answers > 1,
        digest=_digest(body if read.metadata is UNSET else body.replace(bytes(read.metadata), b"", 1), path),
        media_names=media_names,
        reply=reply and reply_span(pieces, *reply, len(text)),
        cache_salt=_salt(read),
        media_sources=sources,
    )


def _salt(read: Reserved) -> bytes:
    return b"" if read.cache_salt is UNSET else bytes(read.cache_salt)


def _digest(body: bytes, path: str) -> int:
    return xxh3_64_intdigest(body, xxh3_64_intdigest(path.encode()))


def _plain_name(value: msgspec.Raw) -> str:
    """A JSON string that may be a name; empty for what is none, as a list is, or is too long to be decoded."""
    name = text_of(value) if len(memoryview(value)) <= _MOST_NAME_BYTES else None
    return name if name is not None and len(name) <= MOST_NAME_CHARACTERS else ""


def _parse_other(body: bytes, path: str, content_type: bytes, limits: Limits) -> Prompt | Malformed:
    """A body that is JSON where it says so; else it passes as it is, if it carries nothing that it may not."""
    try:
        read = decode_other(body)
    except msgspec.ValidationError:  # JSON, and no object
        return _OPAQUE
    except UNREADABLE as error:
        if not body or not (b"json" in content_type.lower() or may_carry(body)):
            return _OPAQUE
        return _no_json(error)
    reserved = _reserved(read)
    if isinstance(reserved, Malformed):
        return reserved
    model, text = text_of(read.model), b""
    if model is not None and len(model) > MOST_NAME_CHARACTERS:
        return _LONG_NAME
    if path not in TOKENIZER_PATHS:
        parts = (read.query, read.documents, read.text_1, read.text_2, read.messages, read.prompt, read.input)
        text = _SEPARATOR.join([part for part in parts if part is not UNSET])
    names: tuple[Span, ...] | None = ()
    sources: tuple[str, ...] | None = ()
    if may_have_media(body):
        names = names_in(body)
        sources = sources_of_other(body, limits.values)
    if names is None:
        return _MANY_NAMES
    if sources is None:
        return TOO_MANY
    answers, digest = conversations_in(read.messages), _digest(body, path)
    return Prompt(
        model, text, text, 0, (), None, reserved, answers=answers, several=True, digest=digest, media_names=names,
        cache_salt=_salt(read),
        media_sources=sources,
    )  # fmt: skip


def _parse_form(body: bytes, content_type: bytes) -> Prompt | Malformed:
    fields = field_spans(body, content_type)
    if fields is None:
        return Malformed("The body is not a multipart form that can be read; send at most 64 fields", None)
    model, span = None, None
    sources: set[str] = set()
    for name, (start, end) in fields:
        domain = source_of_field(name, body[start : min(end, start + _MOST_URL_BYTES)])
        if domain is not None:
            sources.add(domain)
        if name in RESERVED_KEYS:
            return Malformed(f"The form has the field {name}; {_GATEWAY_ONLY}", name)
        if name == "model":
            if span is not None:
                return Malformed("The form has the field model twice; write it once", "model")
            span = start, end
            model = body[start : min(end, start + 4 * MOST_NAME_CHARACTERS)].decode(errors="replace")
    return Prompt(model or None, b"", b"", 0, (), None, model_span=span, media_sources=tuple(sorted(sources)))


def _no_json(error: Exception) -> Malformed:
    if isinstance(error, RecursionError):
        return Malformed("The body is nested too deep to be read; send JSON of fewer levels")
    return Malformed(f"The body is not valid JSON: {error}")


def _reserved(read: Reserved) -> tuple[str, ...] | Malformed:
    """Names of the reserved keys at the top level; Malformed where one stands a level lower, as vLLM takes them too."""
    if (
        read.kv_transfer_params is read.ec_transfer_params is read.bootstrap_host is read.bootstrap_port
        is read.bootstrap_room is read.bootstrap_pair_key is read.decode_tp_size is read.disagg_prefill_dp_rank
        is read.data_parallel_rank is read.routed_dp_rank is read.kv_hints is read.mm_hashes is read.mm_content_hashes
        is read.http_worker_ipc
        is read.encoder_urls is read.need_wait_for_mm_inputs is read.num_items_assigned is read.sampling_params
        is read.vllm_xargs is read.features is UNSET
    ):  # fmt: skip
        return ()
    for key in ("sampling_params", "vllm_xargs", "features"):
        value = getattr(read, key)
        if value is not UNSET and carries(bytes(value)):
            return Malformed(f"{key} has a parameter of its gateway's; {_GATEWAY_ONLY}", key)
    names = Reserved.__struct_fields__
    return tuple([name for name in names if name in RESERVED_KEYS and getattr(read, name) is not UNSET])
