"""How long a prompt is: tokens estimated from bytes and script, and the bucket that accuracy tables are fitted on."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKETS: Final = ("4K", "8K", "16K", "32K", "64K", "128K", "beyond")

# A prompt cut to 4K tokens and its question is still a 4K prompt: each bound has an eighth of slack.
_BOUNDS_TOKENS: Final = tuple(kilo * 1024 * 9 // 8 for kilo in (4, 8, 16, 32, 64, 128))

ASCII_TOKENS_PER_CHARACTER: Final = 0.25
# Tokens for each character outside ASCII, by language, in the tokenizers of today's open models.
WIDE_TOKENS_PER_CHARACTER: Final = {
    "en": 0.5, "ja": 0.8, "zh": 0.7, "ko": 0.7, "ru": 0.35, "el": 0.6, "he": 0.6, "ar": 0.45, "hi": 0.6, "th": 0.6,
    "other": 0.7,
}  # fmt: skip
_TWO_BYTE_LANGUAGES: Final = frozenset({"en", "ru", "el", "he", "ar"})


def bucket_of(tokens: int) -> int:
    """Index into BUCKETS."""
    return bisect_left(_BOUNDS_TOKENS, tokens)


def estimate_tokens(characters: int, utf8_bytes: int, language: str) -> int:
    """Tokens of a text, from its length alone: its bytes beyond one a character tell how many are not ASCII."""
    extra_bytes = utf8_bytes - characters
    wide = extra_bytes if language in _TWO_BYTE_LANGUAGES else extra_bytes / 2
    wide = min(wide, characters)
    return int((characters - wide) * ASCII_TOKENS_PER_CHARACTER + wide * WIDE_TOKENS_PER_CHARACTER[language]) + 1
