"""The text of a prompt: the slices of the body that the model will read, in the order of chat templates.

Most content is one text, or a list of texts; those stay whole. Only where a part is an image or a clip are the parts
taken apart, as a digest of its bytes must stand for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Final

import msgspec

from fairlead.api.body_limits import Limits, count_of, has_too_many_items
from fairlead.api.json_body import NULL, UNSET, Body, Message, Slice
from fairlead.api.media import MOST_PLACED, Media, stand_in
from fairlead.api.media_names import may_have_media
from fairlead.api.media_sources import MEDIA_KEYS, Elsewhere, domains_of_medium
from fairlead.api.spans import Span

_Piece = msgspec.Raw | bytes
_USER: Final = b'"user"'
_ASSISTANT: Final = b'"assistant"'
_NOTHING: Final = frozenset({b"null", b'""'})
_LINE_END: Final = b"\\n"
_KINDS_OF_PARTS: Final = frozenset(
    b'"%b"' % kind
    for kind in (b"text", b"input_text", b"image", b"image_url", b"input_image", b"input_audio", b"audio_url",
                 b"video_url", b"file", b"input_file", b"document", b"tool_result")
)  # fmt: skip
_MOST_AFTER_REPLY: Final = 64  # pieces
_OPENING_BRACKET: Final = ord("[")
_OPENING_BRACE: Final = ord("{")
_OF_A_LIST: Final = (b"[",)
_OF_AN_OBJECT: Final = (b"{",)
_LEVELS: Final = 3  # of content within content: a message's part, the parts of a tool's result, and their documents
_first_byte: Final = Struct("c").unpack_from  # half the time of a memoryview


class _Part(msgspec.Struct, gc=False):
    """Of a content part, what is not text: media; and `content` and `output`, which may hold further parts."""

    image_url: Slice = UNSET
    image: Slice = UNSET
    input_audio: Slice = UNSET
    audio_url: Slice = UNSET
    audio: Slice = UNSET
    video_url: Slice = UNSET
    video: Slice = UNSET
    file: Slice = UNSET
    file_data: Slice = UNSET
    file_url: Slice = UNSET
    source: Slice = UNSET
    content: Slice = UNSET
    output: Slice = UNSET  # of a function, to the Responses API
    uuid: Slice = UNSET  # see `api.media_names`


_decode_parts = msgspec.json.Decoder(list[_Part]).decode
_decode_lists = msgspec.json.Decoder(list[list[_Part]]).decode
_decode_fields = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_PARTS_KEYS: Final = frozenset({"content", "output"})
_MEDIA_KEYS: Final = frozenset(_Part.__struct_fields__) - _PARTS_KEYS - {"uuid"}
_UNREAD_KEYS: Final = frozenset({"cache_control", "uuid"})  # of parts: models read none
_TEXT_ALONE: Final = _Part()
_CACHE_MARK: Final = re.compile(rb'"cache_control"\s*:\s*(?:null|\{[^{}]*\})(\s*,\s*)?')
_LIST_OF_OBJECTS: Final = re.compile(rb"\s*\[\s*\{")


def pieces_of(
    read: Body, limits: Limits
) -> tuple[list[_Piece], _Piece | None, list[Media], Span | None, bool, Elsewhere] | None:
    """The pieces, the last user message, the media, which pieces are of the last assistant message, whether some
    content may be more than text (only that of messages is looked at, other lists may be), and what may be elsewhere.

    None for more content parts than `limits`.
    """
    pieces: list[_Piece] = []
    media: list[Media] = []
    elsewhere: Elsewhere = []
    has_lists = False
    pieces += [part for part in (read.tools, read.documents) if part is not UNSET]
    for part in (read.instructions, read.system):
        if part is not UNSET:
            if _has_many_parts(part, limits.items_with_media):
                return None
            _add(part, pieces, media, elsewhere)
            has_lists = has_lists or _first_byte(part) == _OF_A_LIST
    messages = read.messages or ()
    before, append = len(pieces), pieces.append
    lists, has_media = [], False
    for message in messages:
        content, tool_calls = message.content, message.tool_calls
        append(message.role)
        if message.reasoning is not UNSET or message.reasoning_content is not UNSET:
            pieces += _thoughts(message)
        append(content)
        if _first_byte(content) == _OF_A_LIST:
            lists.append(content)
        if tool_calls is not UNSET:
            append(tool_calls)
    if lists:
        joined = b"[%b]" % b",".join(lists)
        if _has_too_many_parts(joined, limits.items):
            return None
        has_media = not _are_text_alone(joined)
        if has_media and _has_too_many_parts(joined, limits.items_with_media):
            return None
    if has_media:
        del pieces[before:]
        reply, user = _add_messages(messages, pieces, media, elsewhere)
    else:
        reply, user = _last_of_each(messages, len(pieces))
    user_text: _Piece | None = None
    if user is not None:
        asked = pieces[user[0] + 1 : user[1]]
        user_text = asked[0] if len(asked) == 1 else _LINE_END.join([piece for piece in asked if _is_words(piece)])
    for part in (read.prompt, read.input, read.text, read.input_ids, read.token_ids):
        if part is not UNSET:
            if _has_many_parts(part, limits.items_with_media):
                return None
            _add(part, pieces, media, elsewhere)
            has_lists = has_lists or _first_byte(part) == _OF_A_LIST
    return pieces, user_text, media, reply, has_media or has_lists, elsewhere


def without_cache_marks(pieces: list[_Piece]) -> list[_Piece]:
    """Without Anthropic's `cache_control`, which engines do not read: with each turn clients move it on to the newest
    message, so that what they sent before would never come again.
    """
    return [_unmarked(written) if b"cache_control" in (written := bytes(piece)) else piece for piece in pieces]


def _unmarked(written: bytes) -> bytes:
    parts: list[bytes] = []
    cursor = 0
    for mark in _CACHE_MARK.finditer(written):
        before = written[cursor : mark.start()]
        parts.append(before.rstrip().removesuffix(b",") if mark[1] is None else before)
        cursor = mark.end()
    return b"".join((*parts, written[cursor:]))


def placed(media: list[Media], pieces: list[_Piece]) -> tuple[Media, ...]:
    """The first of `media`, with the ends of their pieces in the text."""
    ends = list(accumulate([len(memoryview(piece)) + 1 for piece in pieces]))
    return tuple([Media(ends[each.end] - 1, each.is_image, each.patches) for each in media[:MOST_PLACED]])


def reply_span(pieces: list[_Piece], first: int, end: int, text_bytes: int) -> Span | None:
    """See `Prompt.reply`; None where much comes after it."""
    if not 0 < len(pieces) - end <= _MOST_AFTER_REPLY or end - first > _MOST_AFTER_REPLY:
        return None
    after = sum([len(memoryview(piece)) + 1 for piece in pieces[end:]])
    return text_bytes - after - sum([len(memoryview(piece)) + 1 for piece in pieces[first:end]]), text_bytes - after


def _is_words(piece: _Piece) -> bool:
    """Whether a part of a message is text, and no image, nor the name of a kind of part."""
    text = bytes(piece)
    return text[:1] == b'"' and text not in _KINDS_OF_PARTS


def _add_messages(
    messages: Sequence[Message], pieces: list[_Piece], media: list[Media], elsewhere: Elsewhere
) -> tuple[Span | None, Span | None]:
    """As `_add`, of messages some of which have parts that are no text; gives what `_last_of_each` does."""
    reply: Span | None = None
    user: Span | None = None
    for message in messages:
        start = len(pieces)
        pieces.append(message.role)
        pieces += _thoughts(message)
        if _first_byte(message.content) == _OF_A_LIST:
            _add(message.content, pieces, media, elsewhere)
        else:
            pieces.append(message.content)
        if message.tool_calls is not UNSET:
            pieces.append(message.tool_calls)
        role = bytes(message.role)
        if role == _ASSISTANT:
            reply = start, len(pieces)
        elif role == _USER and message.content is not NULL:
            user = start, len(pieces)
    return reply, user


def _thoughts(message: Message) -> list[msgspec.Raw]:
    """Reasoning that a client sends back for the engine to go on from; templates write it before the content."""
    both = message.reasoning, message.reasoning_content
    return [each for each in both if each is not UNSET and bytes(each) not in _NOTHING]


def _last_of_each(messages: Sequence[Message], end: int) -> tuple[Span | None, Span | None]:
    """Which pieces are of the last assistant's and of the last user's message, where the last piece is before `end`.

    Each message has a piece for its role, one for each of its thoughts, one for its content and one for its tool calls.
    """
    reply: Span | None = None
    user: Span | None = None
    for message in reversed(messages):
        start = end - (2 if message.tool_calls is UNSET else 3) - len(_thoughts(message))
        role = bytes(message.role)
        if role == _ASSISTANT:
            reply = reply or (start, end)
        elif role == _USER and message.content is not NULL:
            user = user or (start, end)
        if reply is not None and user is not None:
            break
        end = start
    return reply, user


def _has_many_parts(value: msgspec.Raw, most_items: int) -> bool:
    """Whether a list has too many parts to read each; long texts and lists of token ids have none."""
    view = memoryview(value)
    return view[0] == _OPENING_BRACKET and _has_too_many_parts(bytes(view), most_items)


def _has_too_many_parts(lists: bytes, most_items: int) -> bool:
    return len(lists) > most_items and count_of(lists, b"{") > most_items and has_too_many_items(lists, most_items)


def _are_text_alone(lists: bytes) -> bool:
    """Whether no list of content parts has media in it: in one parse, as agents send hundreds of short lists."""
    try:
        read = _decode_lists(lists)
    except msgspec.ValidationError:  # other values among the parts
        return False
    return all(parts.count(_TEXT_ALONE) == len(parts) for parts in read)


def _add(
    value: msgspec.Raw, pieces: list[_Piece], media: list[Media], elsewhere: Elsewhere, levels: int = _LEVELS
) -> None:
    """Append the text of a JSON value, and to `media` its images and clips, for which a digest of their bytes stands.

    Below `levels` of content within content all is text: each level is one more parse of the same bytes.
    """
    parts = _parts(memoryview(value)) if levels else []
    if parts is None:
        elsewhere.append(value)
        parts = []
    if parts.count(_TEXT_ALONE) == len(parts):
        pieces.append(value)
        return
    for part in _decode_fields(value):
        for key, inner in part.items():
            if key in _MEDIA_KEYS and (key != "source" or _first_byte(inner) == _OF_AN_OBJECT):
                text, medium = stand_in(memoryview(inner), key, len(pieces), len(media))
                pieces.append(text)
                media.append(medium)
                if key in MEDIA_KEYS:
                    elsewhere += domains_of_medium(memoryview(inner))
            elif key in _PARTS_KEYS:  # of a tool's result, or of an item of the Responses API
                is_one = _first_byte(inner) == _OF_AN_OBJECT  # as of a computer's screenshot
                _add(msgspec.Raw(b"[%b]" % inner) if is_one else inner, pieces, media, elsewhere, levels - 1)
            elif key not in _UNREAD_KEYS:
                pieces.append(inner)


def _parts(view: memoryview) -> list[_Part] | None:
    """The parts of a JSON list of objects, none for other values; None where objects may be among other values."""
    if view[0] != _OPENING_BRACKET:
        return []
    if view[1] != _OPENING_BRACE and not _LIST_OF_OBJECTS.match(view):
        written = bytes(view)
        return None if b"{" in written and may_have_media(written) else []
    try:
        return _decode_parts(view)
    except msgspec.ValidationError:
        return None
