"""The capability table: what a lookup returns, and what a file may not say."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.capability import LEAST_SUCCESS_PROBABILITY, NEUTRAL, parse_capability_file
from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS, bucket_of

FALLING = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]


def document(**changes: Any) -> dict[str, Any]:
    whole = {"task": "kv-lookup", "buckets": list(BUCKETS), "models": {"small": {"en": FALLING, "other": [0.5] * 7}}}
    return whole | changes


def encoded(**changes: Any) -> bytes:
    return json.dumps(document(**changes)).encode()


def test_a_lookup_returns_the_probability_of_the_language_and_bucket() -> None:
    small = parse_capability_file(encoded()).of_model("small")
    assert [small.success_probability("en", bucket) for bucket in range(len(BUCKETS))] == FALLING


@pytest.mark.parametrize("language", ["ja", "a language from the future"])
def test_a_language_that_the_file_does_not_list_counts_as_other(language: str) -> None:
    assert parse_capability_file(encoded()).of_model("small").success_probability(language, 0) == 0.5


def test_a_model_that_was_never_right_still_has_a_finite_cost() -> None:
    never = parse_capability_file(encoded(models={"never": {"other": [0] * 7}})).of_model("never")
    assert never.success_probability("en", 0) == LEAST_SUCCESS_PROBABILITY > 0


@pytest.mark.parametrize("language", [*LANGUAGES, "unheard of"])
def test_a_model_without_a_file_is_neutral(language: str) -> None:
    assert {NEUTRAL.success_probability(language, bucket) for bucket in range(len(BUCKETS))} == {1.0}


def test_a_file_keeps_its_task_and_all_models() -> None:
    file = parse_capability_file(encoded(models={"a": {"other": FALLING}, "b": {"other": FALLING}}))
    assert (file.task, list(file.models)) == ("kv-lookup", ["a", "b"])


def test_a_missing_model_is_named_with_the_models_that_there_are() -> None:
    with pytest.raises(ValueError, match=r'no model "large"; the file has small'):
        parse_capability_file(encoded()).of_model("large")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00", "not JSON"),
        (b"\xff\xfe\xff", "not JSON"),
        (b'{"x":' + b"[" * 100_000, "not JSON"),
        (b'{"task": "\xff"}', "not JSON"),
        (b"[]", "expected object, got array; write the file with `fairlead fit`, or as"),
        (encoded(task=3), "task: expected str, got int"),
        (encoded(task=""), "task: expected str of length >= 1"),
        (encoded(buckets=None), "buckets: expected array, got null"),
        (encoded(buckets=["4K", "5K"]), '"buckets" is 4K, 5K; write 4K, 8K, 16K'),
        (encoded(buckets=["4K", ["8K"]]), r"buckets\[1\]: expected str, got array"),
        (encoded(models={}), "models: expected object of length >= 1"),
        (encoded(models={"m": []}), "models.*expected object, got array"),
        (encoded(models={"m": {"english": FALLING}}), 'model "m": "english" is not a language code; use en, ja'),
        (encoded(models={"m": {"en": FALLING}}), 'model "m": language "other" is missing'),
        (encoded(models={"m": {"other": FALLING[:3]}}), 'model "m", language "other": expected array of length >= 7'),
        (encoded(models={"m": {"other": 0.5}}), 'model "m", language "other": expected array, got float; write 7 prob'),
        (encoded(models={"m": {"other": [*FALLING[:-1], 1.5]}}), r'language "other", \[6\]: expected float <= 1.0'),
        (encoded(models={"m": {"other": [-0.1, *FALLING[1:]]}}), r"\[0\]: expected float >= 0.0"),
        (encoded(models={"m": {"other": [True, *FALLING[1:]]}}), r"\[0\]: expected float, got bool"),
        (encoded(models={"m": {"other": [None, *FALLING[1:]]}}), r"\[0\]: expected float, got null"),
        (encoded(models={"m": {"other": [float("nan"), *FALLING[1:]]}}), "not JSON"),
    ],
)
def test_a_wrong_file_says_what_is_wrong_and_where(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_capability_file(data)


@given(st.binary() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_no_content_raises_anything_but_a_value_error(data: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_capability_file(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)


@given(st.lists(st.floats(0, 1), min_size=7, max_size=7))
def test_every_probability_is_kept_but_for_the_lower_bound(row: list[float]) -> None:
    capability = parse_capability_file(encoded(models={"m": {"other": row}})).of_model("m")
    looked_up = [capability.success_probability("th", bucket) for bucket in range(len(BUCKETS))]
    assert looked_up == [max(LEAST_SUCCESS_PROBABILITY, probability) for probability in row]


def test_looking_up_a_capability_loads_no_fitting_library() -> None:
    program = "import sys, fairlead.core.capability; print(*{name.split('.')[0] for name in sys.modules})"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(printed.stdout.split())
    assert "fairlead" in loaded
    assert not loaded & {"numpy", "sklearn", "scipy", "polars", "matplotlib"}


def test_a_file_may_begin_with_shorter_prompts() -> None:
    buckets = ["64", "128", "256", "512", "1K", "2K", "beyond"]
    file = {"task": "kv", "first_bucket_tokens": 64, "buckets": buckets, "models": {"small": {"other": FALLING}}}
    small = parse_capability_file(json.dumps(file).encode()).of_model("small")
    found = [small.success_probability("en", bucket_of(tokens), tokens) for tokens in (60, 72, 73, 128, 1024, 99_999)]
    assert found == [FALLING[bucket] for bucket in (0, 0, 1, 1, 4, 6)]


@pytest.mark.parametrize("first", [0, -64, 64.5, True, "64", 1 << 21])
def test_a_first_bucket_that_is_no_length_is_refused(first: object) -> None:
    with pytest.raises(ValueError, match="first_bucket_tokens"):
        parse_capability_file(encoded(first_bucket_tokens=first))
