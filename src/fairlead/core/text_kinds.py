"""What kinds of text a prompt is made of, and how many tokens each has, from a sample of bounded size.

A tokenizer needs 0.2 tokens for a byte of prose, 0.3 of code, 0.8 of UUIDs, and from 0.17 to 0.97 of a byte of other
scripts. So a prompt is sampled evenly, each slice of the sample is of one kind, and its tokens are estimated from
counts of what tokenizers split at. Those weights were fitted to Mistral's tekken on licences, documentation, source
code, logs, JSON and messages in forty languages; how far a model's own tokenizer differs, by kind, is learned
(`core.token_model`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

SCRIPTS: Final = (
    "ja", "zh", "ko", "ru", "el", "he", "ar", "hy", "ka", "th", "hi", "bn", "pa", "gu", "ta", "te", "kn", "ml", "si",
    "am", "km", "my", "lo", "vi",
)  # fmt: skip
TEXT_KINDS: Final = ("prose", "latin", "code", "numbers", "identifiers", "base64", "symbols", *SCRIPTS, "other")
OTHER_KINDS: Final = ("message", "head", "tools", "image", "image_area", "sized_image", "clip")
KINDS: Final = (*TEXT_KINDS, *OTHER_KINDS)
NUMBER: Final = {kind: number for number, kind in enumerate(KINDS)}

SLICES: Final = 16  # of the sample
SLICE_BYTES: Final = 256

_PROSE, _LATIN, _CODE, _NUMBERS, _IDENTIFIERS, _BASE64, _SYMBOLS = range(7)
_MESSAGE: Final = NUMBER["message"]
_OTHER: Final = NUMBER["other"]

# Tokens for each of these.
_CAPITAL: Final = 0.19
_DIGIT: Final = 1.17
_SPACE: Final = 0.16
_NEWLINE: Final = 1.32  # with the indentation after it
_SIGN: Final = 0.37
_WORD: Final = 0.98  # a run of letters
_LONG_WORD: Final = 12  # letters: as long as words of prose are on average nowhere
_LETTER_BEYOND: Final = 0.3  # a letter of what has no words: a sequence of genes, a slug, words set without spaces
_BESIDE_DIGIT: Final = 0.43  # a letter
_CASE: Final = 2.16  # a capital after a small letter
_CHARACTER: Final = {  # that is not ASCII, by kind
    "latin": 0.9, "symbols": 1.3, "ja": 0.73, "zh": 0.88, "ko": 0.65, "ru": 0.33, "el": 0.42, "he": 0.42, "ar": 0.36,
    "hy": 0.42, "ka": 0.5, "th": 0.56, "hi": 0.41, "bn": 0.49, "pa": 0.7, "gu": 0.62, "ta": 0.5, "te": 0.53, "kn": 0.55,
    "ml": 0.54, "si": 2.8, "am": 2.8, "km": 2.6, "my": 0.6, "lo": 2.6, "vi": 0.3, "other": 1.3,
}  # fmt: skip
_EMOJI: Final = 3.4
_BY_KIND: Final = tuple([_CHARACTER.get(kind, 1.0) for kind in KINDS])


_MARK: Final = b"\x1f"  # between two parts of a prompt, see `api.prompt`


def _map(**classes: bytes) -> bytes:
    table = bytearray(b"." * 256)
    for name, members in classes.items():
        for member in members:
            table[member] = {"small": b"a", "capital": b"A", "digit": b"0", "space": b" ", "newline": b"n"}[name][0]
    table[_MARK[0]] = ord("-")
    for wide in range(128, 256):
        table[wide] = ord("-")
    return bytes(table)


_SMALL: Final = bytes(range(ord("a"), ord("z") + 1))
_CAPITALS: Final = _SMALL.upper()
_DIGITS: Final = b"0123456789"
_CASES: Final = _map(small=_SMALL, capital=_CAPITALS, digit=_DIGITS, space=b" ", newline=b"\n\r\t")
_LETTERS: Final = _map(small=_SMALL + _CAPITALS, digit=_DIGITS).replace(b"-", b".")
_NOT_LEADING: Final = bytes(range(0xC0))
_CUT: Final = re.compile(rb"u?[0-9a-f]{1,4}\\u")
_TOKEN_IDS: Final = re.compile(rb"\[\s*(?:\[\s*)?\d")  # a prompt of these begins so, and no other
_REMEMBERED: Final = 8192  # slices: 4 MB
_ESCAPE: Final = re.compile(rb"\\u[0-9a-fA-F]{4}")
_BY_TWO: Final = ("hi", "bn", "pa", "gu", "or", "ta", "te", "kn", "ml", "si", "th", "lo")  # from U+0900 on
_AFTER_E0: Final = {0xA4 + 2 * i + j: script for i, script in enumerate(_BY_TWO) for j in (0, 1)}
_AFTER_E1: Final = {
    **dict.fromkeys((0x80, 0x81), "my"), **dict.fromkeys((0x82, 0x83), "ka"), **dict.fromkeys(range(0x84, 0x88), "ko"),
    **dict.fromkeys(range(0x88, 0x8F), "am"), **dict.fromkeys((0x9E, 0x9F), "km"),
    **dict.fromkeys(range(0xB8, 0xBC), "vi"), **dict.fromkeys(range(0xBC, 0xC0), "el"),
}  # fmt: skip
_LEADS: Final = {
    **dict.fromkeys(range(0xC2, 0xCD), "latin"), **dict.fromkeys((0xCD, 0xCE, 0xCF), "el"),
    **dict.fromkeys(range(0xD0, 0xD4), "ru"), 0xD4: "hy", 0xD5: "hy", 0xD6: "he", 0xD7: "he",
    **dict.fromkeys(range(0xD8, 0xDC), "ar"), 0xE2: "symbols", **dict.fromkeys(range(0xE3, 0xEA), "zh"),
    **dict.fromkeys(range(0xEA, 0xEE), "ko"), 0xEF: "zh", **dict.fromkeys(range(0xF0, 0xF5), "symbols"),
}  # fmt: skip
_KANA: Final = (b"\xe3\x81", b"\xe3\x82", b"\xe3\x83")
_KANA_SHARE: Final = 0.05
_WIDE_SHARE: Final = 0.02  # of a slice's bytes, from which its kind is that of its script


class Slice(NamedTuple):
    """A part of the text as its sample shows it; see `KINDS`."""

    kind: int
    tokens: float  # without the tokens of chat templates
    marks: int  # between messages' parts


def stride_bytes(text_bytes: int) -> int:
    """From one slice of the sample to the next: the least power of two times SLICE_BYTES that needs SLICES or fewer.

    So slices stand at the same places in a conversation's next prompt, and prompts that share a prefix share them.
    """
    return SLICE_BYTES << max(0, (max(1, text_bytes) - 1) // (SLICE_BYTES * SLICES)).bit_length()


def slices(text: bytes) -> tuple[Slice, ...]:
    """The kinds and estimated tokens of each `stride_bytes` of UTF-8 or JSON-escaped `text`, in order.

    The cost hardly grows with the text: 5 us a slice of ASCII, 10 of other scripts, 0.4 of one seen lately. Only the
    marks between messages are counted in all of it.
    """
    size = len(text)
    stride = stride_bytes(size)
    parts = []
    are_ids = _TOKEN_IDS.match(text) is not None
    for start in range(0, size, stride):
        piece = text[start : start + SLICE_BYTES]
        kind, tokens, read_bytes = _of_ids(piece) if are_ids else _sampled(piece)
        end = min(start + stride, size)
        marks = end - start - len(text[start:end].replace(_MARK, b""))  # a fifth of the time of `count`
        parts.append(Slice(kind, tokens * (end - start) / read_bytes, marks))
    return tuple(parts)


def _of_ids(piece: bytes) -> tuple[int, float, int]:
    """As `_sampled`, where the client has tokenized its prompt already."""
    return _NUMBERS, float(piece.count(b",")), len(piece)


@lru_cache(maxsize=_REMEMBERED)
def _sampled(piece: bytes) -> tuple[int, float, int]:
    """A slice's kind and tokens, and how many of its bytes they are of."""
    size = read_bytes = len(piece)
    if b"\\" in piece:
        piece, read_bytes = _unescaped(piece)
        size = len(piece)
    kind, wide_tokens = _PROSE, 0.0
    is_ascii = piece.isascii()
    if not is_ascii:
        kind, wide_tokens = _wide(piece)
    cases, letters = piece.translate(_CASES), piece.translate(_LETTERS)
    capitals, digits, signs = cases.count(b"A"), cases.count(b"0"), cases.count(b".")
    spaces, newlines = cases.count(b" "), cases.count(b"n")
    humps = cases.count(b"aA")
    beside_digits = letters.count(b"a0") + letters.count(b"0a")
    words = letters.count(b".a") + letters.startswith(b"a")
    beyond = letters.count(b"a") - _LONG_WORD * (words + 1)
    tokens = (
        _WORD * words + _SPACE * spaces + _SIGN * signs + _NEWLINE * newlines + _CAPITAL * capitals + _DIGIT * digits
        + _BESIDE_DIGIT * beside_digits + _CASE * humps + wide_tokens
        + (_LETTER_BEYOND * beyond if beyond > 0 else 0.0)
    )  # fmt: skip
    if kind == _PROSE:
        if 16 * humps > size and spaces + newlines < size / 32:
            kind = _BASE64
        elif 16 * beside_digits > size:
            kind = _IDENTIFIERS
        elif 6 * digits > size:
            kind = _NUMBERS
        elif 8 * signs > size or 12 * newlines > size:
            kind = _CODE
    return kind, min(tokens, float(size)), read_bytes  # no token is less than a byte


def _unescaped(piece: bytes) -> tuple[bytes, int]:
    """UTF-8, and how many bytes of the piece it is made of: an escape may be cut at either end."""
    read_bytes = len(piece)
    if b"\\u" in piece:
        if piece.isascii():
            start, end = 0, piece.rfind(b"\\u", -5)
            if len(piece) == SLICE_BYTES and _CUT.match(piece):
                start = piece.index(b"\\u")
            whole = piece[start : end if end > start else len(piece)]
            read_bytes = max(1, len(whole))
            text = whole.decode("raw_unicode_escape", "ignore").encode("utf-16", "surrogatepass")
            piece = text.decode("utf-16", "ignore").encode()
        else:  # signs of HTML, as Go escapes them
            piece = _ESCAPE.sub(b"<", piece)
    return piece.replace(b"\\n", b"\n").replace(b'\\"', b'"').replace(b"\\t", b"\t").replace(b"\\\\", b"\\"), read_bytes


def _wide(piece: bytes) -> tuple[int, float]:
    """The kind of a slice by its script, `_PROSE` where that is a small part of it, and the tokens of that part."""
    leads = piece.translate(None, _NOT_LEADING)
    if not leads:
        return _PROSE, 0.0
    emoji = leads.count(b"\xf0")
    count = len(leads)
    lead = leads[0] if leads.count(leads[0]) == count else max(set(leads), key=leads.count)
    script = _LEADS.get(lead, "other")
    if lead in (0xE0, 0xE1):
        at = piece.find(lead)
        second = piece[at + 1] if at + 1 < len(piece) else 0
        script = (_AFTER_E0 if lead == 0xE0 else _AFTER_E1).get(second, "other")
    elif script == "zh" and sum(map(piece.count, _KANA)) > _KANA_SHARE * count:
        script = "ja"
    kind = NUMBER.get(script, _OTHER)
    tokens = (count - emoji) * _BY_KIND[kind] + emoji * _EMOJI
    return (kind if count > _WIDE_SHARE * len(piece) else _PROSE), tokens
