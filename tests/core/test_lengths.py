"""Tokens from bytes, and buckets from tokens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.lengths import BUCKETS, bucket_of, estimate_tokens


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [(1, "4K"), (4096, "4K"), (4200, "4K"), (5000, "8K"), (8192, "8K"), (16384, "16K"), (32768, "32K"), (65536, "64K"),
     (131072, "128K"), (10**7, "beyond")],
)  # fmt: skip
def test_a_nominal_length_with_its_question_is_in_its_own_bucket(tokens: int, bucket: str) -> None:
    assert BUCKETS[bucket_of(tokens)] == bucket


def test_japanese_has_as_many_tokens_escaped_as_plain() -> None:
    text = "吾輩は猫である。名前はまだ無い。" * 500
    plain = estimate_tokens(text.encode())
    assert estimate_tokens(json.dumps(text).encode()) == pytest.approx(plain, rel=0.1)


def test_figures_have_more_tokens_than_prose_of_the_same_length() -> None:
    assert estimate_tokens(b"0123456789" * 100) > 2 * estimate_tokens(b"ten words " * 100)


@given(st.binary(max_size=20_000))
def test_any_bytes_have_at_least_one_token_and_no_more_than_bytes(text: bytes) -> None:
    assert 1 <= estimate_tokens(text) <= len(text) + 1


@given(st.integers(20, 200))
def test_the_estimate_grows_in_proportion(times: int) -> None:
    page = "The quick brown fox. 吾輩は猫である 12. ".encode()
    assert estimate_tokens(page * times) == pytest.approx(estimate_tokens(page) * times, rel=0.15)
