"""How long a prompt is: tokens estimated from bytes and script, and the bucket that accuracy tables are fitted on."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from fairlead.core.text_kinds import slices

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


def bucket_of(tokens: int, bounds: tuple[int, ...] = _BOUNDS_TOKENS) -> int:
    """Index into BUCKETS, or into those that `bounds_tokens` gave `bounds` for."""
    return bisect_left(bounds, tokens)


def estimate_tokens(text: bytes) -> int:
    """Tokens of UTF-8 (or JSON-escaped) `text`, from a sample of at most 4 KiB of it; at least 1."""
    return int(sum([part.tokens for part in slices(text)])) + 1
