"""Images and clips in a prompt: what stands for one in the prompt's text, and an image's size where the body has it.

An engine caches an image by a hash of its bytes, so a digest stands for it, and padding as long as a block of the
prefix chain follows: some block then ends between the image and whatever comes after it.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64
from struct import unpack_from
from typing import Final

import msgspec
import xxhash

MOST_PLACED: Final = 256  # of a prompt; further ones are counted, and their tokens never as cached
MOST_SIZED: Final = 32
PADDING: Final = b"\0" * 512  # as long as a block, see `core.prefix`; JSON has no such bytes

_MOST_HEAD_BYTES: Final = 8192  # of base64, in which an image says its size
_DATA: Final = re.compile(rb'(?:;base64,|"data"\s*:\s*")')
_PICTURES: Final = frozenset({"image_url", "image", "source"})
_PATCH_PIXELS: Final = 28 * 28


class Media(msgspec.Struct, frozen=True, gc=False):
    """One image or clip: where it stands, and what it is."""

    end: int  # in the prompt's text, of its digest and padding; while the prompt is read, the number of its piece
    is_image: bool
    patches: float = 0.0  # of 28 x 28 pixels; 0: its size is not known


def stand_in(value: memoryview, key: str, piece: int, before: int) -> tuple[bytes, Media]:
    """The text for media whose JSON is `value`, the `piece`-th of the prompt's pieces, after `before` other media."""
    digest = xxhash.xxh3_64_digest(value)
    is_image = key in _PICTURES
    if before >= MOST_PLACED:
        return digest, Media(piece, is_image)
    patches = _patches(value) if is_image and before < MOST_SIZED else 0.0
    return digest + PADDING, Media(piece, is_image, patches)


def _patches(value: memoryview) -> float:
    head = bytes(value[:256])
    found = _DATA.search(head)
    if found is None:
        return 0.0
    coded = bytes(value[found.end() : found.end() + _MOST_HEAD_BYTES])
    try:
        data = a2b_base64(coded[: len(coded) // 4 * 4].replace(b"\\/", b"/"))
    except Error:
        return 0.0
    width, height = image_size(data)
    return width * height / _PATCH_PIXELS


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG, JPEG, GIF or WebP by its first bytes; (0, 0) where they do not say."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        width, height = unpack_from(">II", data, 16)
    elif data[:4] == b"GIF8" and len(data) >= 10:
        width, height = unpack_from("<HH", data, 6)
    elif data[:2] == b"\xff\xd8":
        return _jpeg_size(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        return _webp_size(data)
    else:
        return 0, 0
    return (width, height) if width < 1 << 16 and height < 1 << 16 else (0, 0)


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame; those three are tables
            height, width = unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + max(2, length)
    return 0, 0


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0
