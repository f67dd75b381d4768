"""Facts made of headers and a parsed prompt."""

from __future__ import annotations

import json

from fairlead.core.facts import MAX_ATTEMPTED, RequestFacts, make_facts
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
