"""How long a prompt is: tokens estimated from bytes and script, and the bucket that accuracy tables are fitted on."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKETS: Final = ("4K", "8K", "16K", "32K", "64K", "128K", "beyond")

# A prompt cut to 4K tokens and its question is still a 4K prompt: each bound has an eighth of slack.
_BOUNDS_TOKENS: Final = tuple(kilo * 1024 * 9 // 8 for kilo in (4, 8, 16, 32, 64, 128))

# Tokens for each character, in the tokenizers of today's open models. Digits stand apart: a page of UUIDs or figures has
# nearly three times the tokens of a page of prose.
TOKENS_PER_ASCII_CHARACTER: Final = 0.23
TOKENS_PER_DIGIT: Final = 0.8
TOKENS_PER_WIDE_CHARACTER: Final = {
    "en": 0.5, "ja": 0.8, "zh": 0.7, "ko": 0.7, "ru": 0.35, "el": 0.6, "he": 0.6, "ar": 0.45, "hi": 0.6, "th": 0.6,
    "other": 0.7,
}  # fmt: skip
_TWO_BYTE_LANGUAGES: Final = frozenset({"en", "ru", "el", "he", "ar"})
_ASCII: Final = bytes(range(128))
_DIGITS: Final = b"0123456789"

_SAMPLE_SLICES: Final = 16
_SLICE_BYTES: Final = 256


def bucket_of(tokens: int) -> int:
    """Index into BUCKETS."""
    return bisect_left(_BOUNDS_TOKENS, tokens)


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
    if not sample:
        return 1
    return int(_tokens(sample, language) * len(text) / len(sample)) + 1


def _tokens(sample: bytes, language: str) -> float:
    escapes = sample.count(b"\\u")  # "\u3042": six bytes of JSON for one character
    digits = len(sample) - len(sample.translate(None, _DIGITS))
    if sample.isascii():
        wide_bytes, wide = 0, float(escapes)
    else:
        wide_bytes = len(sample.translate(None, _ASCII))
        wide = escapes + wide_bytes / (2 if language in _TWO_BYTE_LANGUAGES else 3)
    digits = max(0, digits - 2 * escapes)  # on average two of an escape's four hexadecimal digits
    plain = max(0, len(sample) - wide_bytes - 6 * escapes - digits)
    return (
        plain * TOKENS_PER_ASCII_CHARACTER + digits * TOKENS_PER_DIGIT + wide * TOKENS_PER_WIDE_CHARACTER[language]
    )
