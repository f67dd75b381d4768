"""Tokens of kinds of text, told apart from one sum a prompt."""

from __future__ import annotations

import json
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.text_kinds import KINDS, NUMBER, SLICE_BYTES, SLICES, TEXT_KINDS, slices, stride_bytes
from fairlead.core.token_model import RATES_BEFORE, TokenModel, count

PROSE, IDENTIFIERS, HEAD, IMAGE = (NUMBER[kind] for kind in ("prose", "identifiers", "head", "image"))


def model(*prompts: tuple[dict[int, float], int]) -> TokenModel:
    made = TokenModel()
    for features, tokens in prompts:
        made.add(tuple(features.items()), tokens)
    made.settle()
    return made


def test_one_prompt_of_a_kind_is_enough_to_come_close() -> None:
    assert model(({PROSE: 1000.0}, 1400)).rates[PROSE] == pytest.approx(1.4, abs=0.05)


def test_mixed_prompts_tell_their_kinds_apart() -> None:
    rng, prompts = Random(1), []
    for _ in range(20):
        prose, ids = rng.uniform(100, 4000), rng.uniform(100, 4000)
        prompts.append(({PROSE: prose, IDENTIFIERS: ids, HEAD: 1.0}, int(1.2 * prose + 0.7 * ids + 40)))
    rates = model(*prompts).rates
    assert rates[PROSE] == pytest.approx(1.2, abs=0.03)
    assert rates[IDENTIFIERS] == pytest.approx(0.7, abs=0.03)


def test_much_traffic_of_one_kind_says_nothing_of_another() -> None:
    rates = model(*[({PROSE: 1000.0}, 1000)] * 3, *[({IDENTIFIERS: 1000.0}, 500)] * 50).rates
    assert rates[PROSE] == pytest.approx(1.0, abs=0.02)


def test_rare_kinds_are_not_forgotten() -> None:
    rates = model(*[({IDENTIFIERS: 1000.0}, 500)] * 3, *[({PROSE: 1000.0}, 1000)] * 500).rates
    assert rates[IDENTIFIERS] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("image_tokens", [64, 256, 1024, 2500])
def test_an_images_tokens_are_learned_apart_from_text(image_tokens: int) -> None:
    prompts = [({PROSE: 400.0 * n, IMAGE: 1.0}, 400 * n + image_tokens) for n in range(1, 9)]
    rates = model(*prompts).rates
    assert rates[PROSE] == pytest.approx(1.0, abs=0.08)
    assert rates[IMAGE] == pytest.approx(image_tokens, rel=0.1, abs=40)


def test_one_prompt_that_was_counted_otherwise_hardly_matters() -> None:
    rates = model(*[({PROSE: 1000.0}, 1000)] * 8, ({PROSE: 1000.0}, 3000)).rates
    assert rates[PROSE] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("factor", [0.25, 1.75])
def test_an_engine_that_counts_otherwise_hardly_moves_what_two_others_count(factor: float) -> None:
    rng, made = Random(1), TokenModel()
    for engine, prompts, share in (("a:1", 8, 1.0), ("b:1", 8, 1.0), ("c:1", 130, factor)):
        for _ in range(prompts):
            prose = rng.uniform(200, 2000)
            made.add(((PROSE, prose), (HEAD, 1.0)), int(share * 0.85 * prose + 10), engine)
    made.settle()
    assert made.rates[PROSE] == pytest.approx(0.85, rel=0.1)


def test_a_prompt_of_far_fewer_tokens_than_expected_leaves_no_rate_below_zero() -> None:
    assert min(model(({NUMBER["code"]: 56.0, HEAD: 1.0}, 7)).rates) == 0


@settings(max_examples=50)
@given(st.lists(st.tuples(st.dictionaries(st.integers(0, len(KINDS) - 1), st.floats(0, 1e6), min_size=1, max_size=6),
                          st.integers(1, 10**7)), max_size=30))  # fmt: skip
def test_rates_are_never_absurd(prompts: list[tuple[dict[int, float], int]]) -> None:
    rates = model(*prompts).rates
    assert all(0.1 <= rate <= 10 for rate in rates[: len(TEXT_KINDS)])
    assert all(rate >= 0 for rate in rates)


# ---- kinds ----------------------------------------------------------------------------------------------------------


def uuids(pairs: int) -> str:
    rng = Random(3)
    return json.dumps({str(UUID(int=rng.getrandbits(128))): str(UUID(int=rng.getrandbits(128))) for _ in range(pairs)})


# Text, its kind, and its tokens by Mistral's tekken (2024-09) for each byte of UTF-8.
MEASURED = [
    ("The quick brown fox jumps over the lazy dog while everybody looks at it. " * 40, "prose", 0.207),
    (uuids(80), "identifiers", 0.845),
    (
        "".join(Random(1).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=6000)),
        "base64",
        0.765,
    ),
    ("\n".join(f"{Random(n).random() * 1000:.3f}, {n}" for n in range(600)), "numbers", 1.0),
    ("    for (name, value) in items:\n        found[name] += self.read(value, key=None);\n" * 40, "code", 0.27),
    ("吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 60, "ja", 0.27),
    ("मुझे हिन्दी में एक लंबा उत्तर चाहिए जो सब कुछ समझाए। " * 60, "hi", 0.167),
    ("আমি বাংলায় গান গাই আমি বাংলার গান গাই। " * 60, "bn", 0.194),
    ("தமிழ் மொழி மிகவும் பழமையான மொழி ஆகும். " * 60, "ta", 0.199),
    ("ქართული ენა ძალიან ძველი და ლამაზი ენაა. " * 60, "ka", 0.198),
    ("😀😂🚀🔥💡✨🎉👍" * 200, "symbols", 0.95),
]


@pytest.mark.parametrize(("text", "kind", "tokens_per_byte"), MEASURED, ids=[kind for _, kind, _ in MEASURED])
def test_kinds_are_told_and_counted_before_anything_is_learned(text: str, kind: str, tokens_per_byte: float) -> None:
    found = slices(text.encode())
    kinds = [KINDS[each.kind] for each in found]
    assert kinds.count(kind) > 0.8 * len(kinds)
    assert sum(each.tokens for each in found) / len(text.encode()) == pytest.approx(tokens_per_byte, rel=0.25)


def test_letters_without_spaces_are_not_one_word() -> None:
    text = "".join(Random(1).choices("acgt", k=4096)).encode()
    assert 0.2 < sum(each.tokens for each in slices(text)) / len(text) < 0.5


@pytest.mark.parametrize("text", [text for text, _, _ in MEASURED], ids=[kind for _, kind, _ in MEASURED])
def test_escaped_text_has_the_tokens_of_the_plain_one(text: str) -> None:
    plain = sum(each.tokens for each in slices(json.dumps(text, ensure_ascii=False).encode()))
    assert sum(each.tokens for each in slices(json.dumps(text).encode())) == pytest.approx(plain, rel=0.15)


def test_a_mixed_prompt_counts_by_its_parts() -> None:
    prose, ids = MEASURED[0][0] * 3, MEASURED[1][0]
    features = [(each.kind, each.tokens) for each in slices((prose + ids).encode())]
    apart = [(each.kind, each.tokens) for text in (prose, ids) for each in slices(text.encode())]
    assert count(features, RATES_BEFORE) == pytest.approx(count(apart, RATES_BEFORE), rel=0.1)


@given(st.binary(max_size=3 * SLICES * SLICE_BYTES))
def test_a_sample_is_bounded_and_covers_all_of_the_text(text: bytes) -> None:
    found = slices(text)
    assert len(found) == -(-len(text) // stride_bytes(len(text))) <= SLICES
    assert sum(each.tokens for each in found) <= len(text) + len(found)


@given(st.integers(1, 10**9))
def test_longer_prompts_are_sampled_at_places_where_shorter_ones_were(text_bytes: int) -> None:
    assert stride_bytes(2 * text_bytes) % stride_bytes(text_bytes) == 0


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("lists", [1, 4])
def test_a_prompt_of_token_ids_has_as_many_tokens_as_ids(separators: tuple[str, str], lists: int) -> None:
    """By their digits they were seven times as many, and what answers showed of them made numbers in text too few."""
    ids = [Random(0).randrange(150_000) for _ in range(6000)]
    prompt = ids if lists == 1 else [ids[part::lists] for part in range(lists)]
    parts = slices(json.dumps(prompt, separators=separators).encode())
    assert sum(part.tokens for part in parts) == pytest.approx(6000, rel=0.03)
