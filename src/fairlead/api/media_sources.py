"""Where an engine would get an image or a clip from: out of the body, or from somewhere else.

By default vLLM and SGLang fetch any URL, and follow its redirects. So a client could have them ask whatever their
network reaches: a cloud's metadata, a neighbour's port, or the engine's own, where SGLang takes a GET of
`/release_memory_occupation` or `/flush_cache`. SGLang also opens files of its machine that a request names. Both have a
list of allowed domains (`--allowed-media-domains`), and it is empty, which allows all; here it allows none.

Sources: CVE-2025-6242; vLLM's issue 57157 and `multimodal/media/connector.py` of 0.32; SGLang's issue 17269,
`load_image`, `load_audio` and `load_video` in `srt/utils/common.py` of 0.5.23.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from fairlead.api.body_limits import has_too_many_values
from fairlead.api.json_body import UNREADABLE, UNSET, Body, Slice, text_of
from fairlead.api.media_names import may_have_media

ANY_DOMAIN: Final = "*"
NO_DOMAIN: Final = ""  # a file of the engine's machine, or what is neither in the body nor a URL
ODD_DOMAIN: Final = "?"  # of a URL that two readers could read as of two hosts

MEDIA_KEYS: Final = frozenset(
    {
        "image_url", "video_url", "audio_url", "file_url", "image", "video", "audio", "images", "videos", "audios",
        "image_data", "video_data", "audio_data", "input_audio", "input_image", "source",
    }
)  # fmt: skip
LOCATORS: Final = frozenset({"url", "image", "video", "audio"})  # in an object under one of those keys
# What engines read no media in, and clients write anything into: a tool's arguments are `input` to Anthropic.
FREE_KEYS: Final = frozenset({"arguments", "input", "metadata"})
_FREE_AT_THE_TOP: Final = FREE_KEYS - {"input"}
# As base64 without `data:`, which SGLang takes too: PNG, JPEG, GIF, RIFF (WebP, WAV), MP4, WebM, Ogg, FLAC, MP3.
BEGINNINGS: Final = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "AAAA", "GkXf", "T2dn", "ZkxhQ", "SUQz")

_BEGINNING: Final = "|".join(("[dD][aA][tT][aA]:", *BEGINNINGS))
_INLINE: Final = re.compile(rf'"(?:{_BEGINNING}|")'.encode())
_INLINE_TEXT: Final = re.compile(rf"{_BEGINNING}|\Z")
_PLAIN_HEAD: Final = re.compile(rf'\{{\s*"url"\s*:\s*"(?:{_BEGINNING})'.encode())
_PLAIN_TAIL: Final = re.compile(rb'"\s*(?:,\s*"detail"\s*:\s*"[a-z]*"\s*)?\}\Z')
_URL: Final = re.compile(r"\s*https?://", re.IGNORECASE)
_LOCATION: Final = re.compile(r"\s*(?:https?|file):", re.IGNORECASE)
# No name in DNS is longer, and an error shows it.
_DOMAIN: Final = re.compile(r"([A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{1,45}\])(?::[0-9]{1,5})?(?=[/?#]|\Z)")
_QUOTE: Final = ord('"')
_OPENING_BRACE: Final = ord("{")
_OPENING_BRACKET: Final = ord("[")
_MOST_LISTED: Final = 8192
_MOST_SOURCES: Final = 64  # of one request


# What content parts may have an engine fetch: domains, and lists that are still to be looked at.
Elsewhere = list[str | msgspec.Raw]


class _Object(msgspec.Struct, gc=False):
    url: Slice = UNSET
    image: Slice = UNSET
    video: Slice = UNSET
    audio: Slice = UNSET


_decode_object = msgspec.json.Decoder(_Object).decode
_decode_value = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def sources_of(
    read: Body, elsewhere: Elsewhere, body: bytes, most_values: int, *, is_any: bool
) -> tuple[str, ...] | None:
    """The domains that the engine would fetch a prompt's media from; None where too much would have to be looked at.

    `is_any`: whether `body` may be one of any API, as a path that takes all of them has it.
    """
    domains = {each for each in elsewhere if isinstance(each, str)}
    lists = [(each, False) for each in elsewhere if not isinstance(each, str)]
    if read.content_parts is not UNSET:
        lists.append((read.content_parts, False))
    lists += [(each, True) for each in (read.image_data, read.video_data, read.audio_data) if each is not UNSET]
    return _all_sources(domains, lists + (_fields(body) if is_any else []), most_values)


def sources_of_other(body: bytes, most_values: int) -> tuple[str, ...] | None:
    """As `sources_of`, of an object of any other API."""
    return _all_sources(set(), _fields(body), most_values)


def _fields(body: bytes) -> list[tuple[msgspec.Raw, bool]]:
    """The values at the top level, and whether each is a medium. Prompts may be there as a million numbers."""
    return [
        (value, is_media(key, memoryview(value)[0] == _OPENING_BRACE))
        for key, value in _decode_fields(body).items()
        if key not in _FREE_AT_THE_TOP
    ]


def _all_sources(
    domains: set[str], values: Iterable[tuple[msgspec.Raw, bool]], most_values: int
) -> tuple[str, ...] | None:
    for value, is_medium in values:
        if is_medium or may_have_media(bytes(value)):
            found = sources_in(value, most_values, of_media=is_medium)
            if found is None:
                return None
            domains |= found
    return tuple(sorted(domains)) if len(domains) <= _MOST_SOURCES else None


def domain_of(text: str) -> str | None:
    """The domain that the engine would fetch a medium from; None for one that is in the body."""
    if _INLINE_TEXT.match(text):
        return None
    scheme = _URL.match(text)
    if scheme is None:
        return NO_DOMAIN
    domain = _DOMAIN.match(text, scheme.end())
    return ODD_DOMAIN if domain is None else domain[1].rstrip(".").lower()


def domains_of_medium(value: memoryview) -> Iterable[str]:
    """The domains of one medium of a content part: a URL, or an object that has it."""
    if _INLINE.match(value):
        return ()
    if value[0] == _QUOTE:
        return _domains((msgspec.Raw(value),))
    if value[0] == _OPENING_BRACKET:
        listed = sources_in(msgspec.Raw(value), _MOST_LISTED, of_media=True)
        return (NO_DOMAIN,) if listed is None else listed
    if value[0] != _OPENING_BRACE or _is_plain_object(value):
        return ()
    where = _decode_object(value)
    return _domains((where.url, where.image, where.video, where.audio))


def _is_plain_object(value: memoryview) -> bool:
    """Whether it is as nearly all are, a URL with the bytes and a word on them: a fourth of the time of a parse."""
    head = _PLAIN_HEAD.match(value)
    if head is None:
        return False
    written = bytes(value)
    return _PLAIN_TAIL.match(written, written.find(b'"', head.end())) is not None


def sources_in(value: msgspec.Raw, most_values: int, *, of_media: bool = False) -> set[str] | None:
    """The domains of all media in any JSON value; None where it holds too many values to look at each.

    `of_media`: each text in it is a medium, as in SGLang's `image_data`.
    """
    written = bytes(value)
    if has_too_many_values(written, most_values):
        return None
    try:
        found: list[tuple[Any, bool]] = [(_decode_value(written), of_media)]
    except UNREADABLE:
        return {NO_DOMAIN}
    domains: set[str] = set()
    while found:
        each, is_medium = found.pop()
        if isinstance(each, str):
            domain = domain_of(each) if is_medium else None
            if domain is not None:
                domains.add(domain)
        elif isinstance(each, list):
            found += [(inner, is_medium) for inner in each]
        elif isinstance(each, dict):
            found += [
                (inner, is_media(key, isinstance(inner, dict)) or (is_medium and key in LOCATORS))
                for key, inner in each.items()
                if key not in FREE_KEYS
            ]
    return domains


def is_media(key: str, is_object: bool) -> bool:
    """Whether a value under `key` is a medium. Anthropic's `source` of a search result is a text, and none."""
    return key in MEDIA_KEYS and (is_object or key != "source")


def source_of_field(name: str, value: bytes) -> str | None:
    """The domain that a form's field names, as vLLM and SGLang take pictures to be edited; None for any other field.

    `value` is the beginning of it. A file's bytes are no name.
    """
    name = name.removesuffix("[]")
    text = value.decode("latin-1")
    if name == "url" or name.endswith("_url"):
        return domain_of(text)
    return domain_of(text) if name in MEDIA_KEYS and _LOCATION.match(text) else None


def first_refused(sources: Iterable[str], allowed: Collection[str]) -> str | None:
    """The first of `sources` that engines may not fetch from; None if they may from all."""
    for domain in sources:
        if domain == NO_DOMAIN or not (domain in allowed or ANY_DOMAIN in allowed):
            return domain
    return None


def _domains(values: Iterable[Slice]) -> Iterable[str]:
    for value in values:
        if value is UNSET or _INLINE.match(value) or memoryview(value)[0] != _QUOTE:
            continue
        text = text_of(value)
        domain = NO_DOMAIN if text is None else domain_of(text)
        if domain is not None:
            yield domain
