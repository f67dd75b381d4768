"""How long a prompt is: tokens estimated from bytes and script, and the bucket that accuracy tables are fitted on."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Final

BUCKETS: Final = ("4K", "8K", "16K", "32K", "64K", "128K", "beyond")
FIRST_BUCKET_TOKENS: Final = 4096


def bounds_tokens(first_bucket_tokens: int = FIRST_BUCKET_TOKENS) -> tuple[int, ...]:
    """The longest prompt of each bucket but the last, where lengths double from the first bucket on.

    A prompt cut to 4K tokens and its question is still a 4K prompt: each bound has an eighth of slack.
    """
    return tuple(first_bucket_tokens * 2**doublings * 9 // 8 for doublings in range(len(BUCKETS) - 1))


def bucket_names(first_bucket_tokens: int = FIRST_BUCKET_TOKENS) -> tuple[str, ...]:
    """BUCKETS, or what they are called where the first one is of another length."""
    lengths = [first_bucket_tokens * 2**doublings for doublings in range(len(BUCKETS) - 1)]
    return (*[f"{length // 1024}K" if length % 1024 == 0 else str(length) for length in lengths], BUCKETS[-1])


_BOUNDS_TOKENS: Final = bounds_tokens()

# Tokens for each character, in the tokenizers of today's open models. Digits stand apart: a page of UUIDs has
# nearly three times the tokens of a page of prose as long.
TOKENS_PER_ASCII_CHARACTER: Final = 0.23
TOKENS_PER_DIGIT: Final = 0.8
TOKENS_PER_WIDE_CHARACTER: Final = {
    "en": 0.5, "ja": 0.8, "zh": 0.7, "ko": 0.7, "ru": 0.35, "el": 0.6, "he": 0.6, "ar": 0.45, "hi": 0.6, "th": 0.6,
    "other": 0.7,
}  # fmt: skip
_TWO_BYTE_LANGUAGES: Final = frozenset({"en", "ru", "el", "he", "ar"})
_WIDE: Final = bytes(range(128, 256))
_DIGITS: Final = b"0123456789"

_ESCAPE: Final = re.compile(rb"\\u[0-9a-fA-F]{4}")  # JSON's six bytes for one character

_SAMPLE_SLICES: Final = 16
_SLICE_BYTES: Final = 256


def bucket_of(tokens: int, bounds: tuple[int, ...] = _BOUNDS_TOKENS) -> int:
    """Index into BUCKETS, or into those that `bounds_tokens` gave `bounds` for."""
    return bisect_left(bounds, tokens)


def estimate_tokens(text: bytes, language: str) -> int:
    """Tokens of UTF-8 (or JSON-escaped) `text`, from the density of a sample of at most 4 KiB spread over it.

    At least 1. The cost does not grow with the text.
    """
    stride = len(text) // _SAMPLE_SLICES
    if stride > _SLICE_BYTES:
        starts = range(0, stride * _SAMPLE_SLICES, stride)
        sample = b"".join([text[start : start + _SLICE_BYTES] for start in starts])
    else:
        sample = text
    return int(_tokens(sample, language) * len(text) / max(1, len(sample))) + 1


def _tokens(sample: bytes, language: str) -> float:
    wide = 0.0
    if b"\\" in sample and b"\\u" in sample:  # one byte is found ten times as fast as two
        if sample.isascii():  # most often all of the text is escaped, and this is ten times the speed
            text = sample.decode("raw_unicode_escape", "ignore")
            sample = text.encode("ascii", "ignore")
            wide += len(text) - len(sample)
        else:
            sample, escapes = _ESCAPE.subn(b"", sample)
            wide += escapes
    if not sample.isascii():
        plain = sample.translate(None, _WIDE)
        wide += (len(sample) - len(plain)) / (2 if language in _TWO_BYTE_LANGUAGES else 3)
        sample = plain
    letters = len(sample.translate(None, _DIGITS))
    digits = len(sample) - letters
    wide_tokens = wide * TOKENS_PER_WIDE_CHARACTER[language]
    return letters * TOKENS_PER_ASCII_CHARACTER + digits * TOKENS_PER_DIGIT + wide_tokens
