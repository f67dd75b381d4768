"""Facts made of headers and a parsed prompt."""

from __future__ import annotations

import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.facts import MAX_ATTEMPTED, RequestFacts, make_facts
from fairlead.core.language import LANGUAGES
from fairlead.core.prefix import BLOCK_BYTES, chain
from fairlead.core.prompt import Prompt, parse


def facts(text: str, *, escaped: bool = False, **more: object) -> RequestFacts:
    messages = [{"role": "user", "content": text}]
    prompt = parse(
        json.dumps({"model": "m", "messages": messages}, ensure_ascii=escaped).encode(), "/v1/chat/completions"
    )
    assert isinstance(prompt, Prompt)
    return make_facts(prompt, "m", **more)  # type: ignore[arg-type]


def test_language_and_length_are_told_from_the_text() -> None:
    made = facts("吾輩は猫である。名前はまだ無い。" * 700)
    assert (made.language, made.bucket) == ("ja", 1)


def test_escaped_text_has_the_same_facts() -> None:
    text = "吾輩は猫である。名前はまだ無い。" * 500
    assert (facts(text).language, facts(text).bucket) == (
        facts(text, escaped=True).language,
        facts(text, escaped=True).bucket,
    )


@given(
    st.lists(
        st.binary() | st.sampled_from([b"\\", b"\\u", b"\\U", b"d83d", b"\\ude00", b"\\x", b"\\8", b"\\d", b"\\N"])
    )
)
def test_any_bytes_have_a_language_and_a_length_without_a_warning(pieces: list[bytes]) -> None:
    """Prompts are cut anywhere, inside an escape too; half of a surrogate pair is as good as any character."""
    text = b"".join(pieces)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = make_facts(Prompt("m", text, text, 0, (), None, has_kv_transfer_params=False), "m")
    assert made.language in LANGUAGES
    assert made.tokens >= 1


@pytest.mark.parametrize("beside", [r"C:\\users\\me", r"\\usepackage", r"\u003cb\u003e"])
def test_escapes_beside_utf_8_do_not_hide_its_language(beside: str) -> None:
    """Paths and formulas have a backslash before a u, and Go's JSON escapes the signs of HTML but no letter."""
    text = f"吾輩は猫である。{beside} 名前はまだ無い。".encode()
    assert make_facts(Prompt("m", text, text, 0, (), None, has_kv_transfer_params=False), "m").language == "ja"


@pytest.mark.parametrize(("text", "language"), [("😀 猫である", "ja"), ("😀😀😀 hello", "en")])
def test_escaped_surrogate_pairs_are_of_no_language(text: str, language: str) -> None:
    assert facts(text, escaped=True).language == facts(text).language == language


def test_a_session_of_any_length_takes_sixteen_bytes() -> None:
    assert len(facts("x", session_id=b"s" * 1_000_000).session or b"") == 16


def test_a_long_list_of_attempts_is_cut() -> None:
    assert len(facts("x", attempted=("m",) * 1000).attempted) == MAX_ATTEMPTED


def test_a_chain_has_a_hash_for_each_whole_block() -> None:
    assert [len(chain(b"x" * size)) for size in (0, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 1)] == [0, 0, 1, 3]


def test_chains_agree_as_far_as_their_texts_do() -> None:
    common, one, other = b"c" * 2 * BLOCK_BYTES, b"1" * BLOCK_BYTES, b"2" * BLOCK_BYTES
    first, second = chain(common + one + common), chain(common + other + common)
    assert first[:2] == second[:2]
    assert set(first[2:]).isdisjoint(second[2:])


def test_worlds_with_another_seed_share_no_hash() -> None:
    text = b"x" * 10 * BLOCK_BYTES
    assert set(chain(text, seed=1)).isdisjoint(chain(text, seed=2))
