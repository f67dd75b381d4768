"""Facts made of headers and a parsed prompt."""

from __future__ import annotations

import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.body_limits import MOST_ATTEMPTED
from fairlead.api.prompt import Prompt, parse
from fairlead.core.facts import RequestFacts, make_facts
from fairlead.core.language import LANGUAGES
from fairlead.core.prefix import BLOCK_BYTES, chain


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
        made = make_facts(Prompt("m", text, text, 0, (), None), "m")
    assert made.language in LANGUAGES
    assert made.tokens >= 1


@pytest.mark.parametrize("beside", [r"C:\\users\\me", r"\\usepackage", r"\u003cb\u003e"])
def test_escapes_beside_utf_8_do_not_hide_its_language(beside: str) -> None:
    """Paths and formulas have a backslash before a u, and Go's JSON escapes the signs of HTML but no letter."""
    text = f"吾輩は猫である。{beside} 名前はまだ無い。".encode()
    assert make_facts(Prompt("m", text, text, 0, (), None), "m").language == "ja"


@pytest.mark.parametrize(("text", "language"), [("😀 猫である", "ja"), ("😀😀😀 hello", "en")])
def test_escaped_surrogate_pairs_are_of_no_language(text: str, language: str) -> None:
    assert facts(text, escaped=True).language == facts(text).language == language


def test_a_session_of_any_length_takes_sixteen_bytes() -> None:
    assert len(facts("x", session_id=b"s" * 1_000_000).session or b"") == 16


def test_a_long_list_of_attempts_is_cut() -> None:
    assert len(facts("x", attempted=("m",) * 1000).attempted) == MOST_ATTEMPTED


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


@pytest.mark.parametrize(
    "named",
    [
        '"cache_salt":"acme"',
        '"extra_key":"acme"',
        '"extra_key":["acme"]',
        '"lora_path":"acme"',
        '"chat_template":"{{ messages }}"',
        '"chat_template_kwargs":{"enable_thinking":false}',
        '"reasoning_effort":"high"',
        '"tool_choice":"none"',
        '"truncate_prompt_tokens":4096',
        '"mm_processor_kwargs":{"max_pixels":1000}',
        '"image_data":"https://a/b.png"',
        '"prompt_embeds":"AAAA"',
    ],
)
def test_what_separates_an_engines_caches_separates_chains(named: str) -> None:
    """Engines never share blocks between these, so a hit there would be a false one."""
    plain, other = asked(""), asked(f",{named}")
    assert set(plain.prefix).isdisjoint(other.prefix)
    assert asked(f",{named}").prefix == other.prefix


def test_two_tenants_with_a_salt_each_share_nothing_and_each_shares_with_itself() -> None:
    acme, umbrella = asked(',"cache_salt":"acme"'), asked(',"cache_salt":"umbrella"')
    assert set(acme.prefix).isdisjoint(umbrella.prefix)
    assert acme.prefix == asked(',"temperature":1,"cache_salt":"acme"').prefix


@pytest.mark.parametrize(
    "named",
    ['"cache_salt":null', '"chat_template_kwargs":{}', '"tool_choice":"auto"', '"tool_choice":"required"', '"seed":7'],
)
def test_what_changes_no_cache_changes_no_chain(named: str) -> None:
    assert asked(f",{named}").prefix == asked("").prefix


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_two_pairs_of_tenant_and_salt_share_a_chain(a: str, b: str, c: str, d: str) -> None:
    pairs = [(a, b), (c, d)]
    one, other = (asked(f',"cache_salt":{json.dumps(salt)}', tenant=tenant.encode()).prefix for tenant, salt in pairs)
    assert (one == other) == (pairs[0] == pairs[1])


def test_documents_are_part_of_the_prompt() -> None:
    one, other = (asked(f',"documents":[{{"text":"{word * 300}"}}]') for word in ("cats ", "dogs "))
    assert set(one.prefix).isdisjoint(other.prefix)
    assert one.tokens > asked("").tokens + 200


def asked(more: str, tenant: bytes = b"") -> RequestFacts:
    text = "a question about ships " * 100
    body = f'{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]{more}}}'.encode()
    prompt = parse(body, "/v1/chat/completions")
    assert isinstance(prompt, Prompt)
    return make_facts(prompt, "m", tenant=tenant)


@pytest.mark.parametrize(
    "named",
    [
        '"prompt_logprobs":0',
        '"prompt_logprobs":5',
        '"echo":true,"logprobs":1',
        '"logprob_start_len":0',
        '"sampling_params":{"prompt_logprobs":1}',
        '"sampling_params":{"skip_reading_prefix_cache":true}',
        '"echo":1,"logprobs":1',
        '"echo":"yes","logprobs":1',
        '"logprob_start_len":[0]',
        '"logprob_start_len":"0"',
    ],
)
def test_a_prompt_that_the_answer_tells_of_is_not_looked_for_in_caches(named: str) -> None:
    """vLLM and SGLang compute all of it: a probability comes only with the computing."""
    told = asked(f",{named}")
    assert (told.prefix, told.turn, told.last_turn) == ((), None, None)
    assert told.tokens == asked("").tokens


@pytest.mark.parametrize(
    "named", ['"prompt_logprobs":null', '"echo":false', '"logprobs":true', '"logprob_start_len":-1']
)
def test_what_is_told_of_the_answer_alone_changes_no_chain(named: str) -> None:
    assert asked(f",{named}").prefix == asked("").prefix


@pytest.mark.parametrize(
    "named",
    [
        '"truncate_prompt_tokens":10', '"chat_template":"x"', '"prompt_embeds":"AAAA"', '"image_data":"https://a/b.png"',
        '"previous_response_id":"resp_1"',
    ],
)  # fmt: skip
def test_what_an_engine_cuts_or_adds_to_says_nothing_of_how_many_tokens_text_has(named: str) -> None:
    """Where a third of a model's prompts were cut, all others were taken to be two thirds of what they are."""
    assert asked("").features
    assert asked(f",{named}").features == ()
    assert asked(f",{named}").tokens == asked("").tokens


@pytest.mark.parametrize("more", [',"sampling_params":[]', ',"n":null', ',"seed":1', ',"documents":"x"'])
def test_what_may_be_why_engines_fail_is_all_that_the_client_sent(more: str) -> None:
    assert asked(more).cause != asked("").cause


def test_other_tenants_and_other_apis_send_something_else() -> None:
    body = b'{"model":"m","prompt":"go"}'
    causes = [
        make_facts(prompt, "m", tenant=tenant).cause
        for path in ("/v1/completions", "/generate", "/v1/rerank")
        for tenant in (b"", b"a", b"b")
        if isinstance(prompt := parse(body, path), Prompt)
    ]
    assert len(set(causes)) == 9


def test_a_retry_that_names_the_models_tried_before_sends_the_same() -> None:
    again = [asked(f',"metadata":{{"attempted_models":{models}}}') for models in ('["a"]', '["a","b"]')]
    assert again[0].cause == again[1].cause
