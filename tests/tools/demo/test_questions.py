from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.prompt import Prompt, parse
from fairlead.core import lengths
from fairlead.core.facts import make_facts
from fairlead.tools.demo.questions import KINDS, LANGUAGES, Question, is_correct, questions

KILO = 1024
LENGTHS = (4 * KILO, 8 * KILO, 16 * KILO, 32 * KILO, 64 * KILO)
SAMPLE = questions(seed=1, languages=LANGUAGES, lengths_tokens=LENGTHS, count=60)
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def as_seen_by_the_router(question: Question) -> Prompt:
    body = json.dumps({"model": "auto", "messages": question.messages}, ensure_ascii=False).encode()
    prompt = parse(body, "/v1/chat/completions")
    assert isinstance(prompt, Prompt)
    return prompt


@pytest.mark.parametrize("question", SAMPLE, ids=lambda q: f"{q.kind}-{q.language}-{q.length_tokens}")
def test_the_router_sees_the_intended_language_and_bucket(question: Question) -> None:
    facts = make_facts(as_seen_by_the_router(question), "auto")
    assert facts.language == question.language
    assert lengths.BUCKETS[facts.bucket] == f"{question.length_tokens // KILO}K"


@pytest.mark.parametrize("question", SAMPLE, ids=lambda q: f"{q.kind}-{q.language}-{q.length_tokens}")
def test_a_prompt_is_close_to_its_nominal_length_and_not_above_it(question: Question) -> None:
    tokens = lengths.estimate_tokens(question.prompt.encode())
    assert 0.9 * question.length_tokens < tokens <= question.length_tokens


@pytest.mark.parametrize("question", SAMPLE[:30], ids=lambda q: f"{q.kind}-{q.language}-{q.length_tokens}")
def test_the_last_uuid_is_the_asked_key_and_stands_next_to_its_value_once(question: Question) -> None:
    assert UUID.findall(question.prompt)[-1] == question.key
    assert len(re.findall(rf'{question.key}"?(?:: ?|：)"?{question.expected}', question.prompt)) == 1
    assert question.prompt.count(question.expected) == 1


def test_every_kind_language_and_length_comes_equally_often() -> None:
    shapes = [(question.kind, question.language, question.length_tokens) for question in SAMPLE]
    assert len(set(shapes)) == len(KINDS) * len(LANGUAGES) * len(LENGTHS) == 30
    assert {shapes.count(shape) for shape in shapes} == {2}


def test_the_same_seed_gives_the_same_questions_and_another_seed_none_of_them() -> None:
    def world(seed: int) -> list[Question]:
        return questions(seed, LANGUAGES, [4 * KILO], 12)

    assert world(7) == world(7)
    assert not {question.key for question in world(7)} & {question.key for question in world(8)}


def test_an_answer_is_correct_with_the_value_alone_or_next_to_its_key() -> None:
    question = SAMPLE[0]
    assert is_correct(question.expected, question)
    assert is_correct(f"The value of {question.key} is {question.expected.upper()}.", question)


def test_an_answer_without_the_value_or_with_another_one_too_is_wrong() -> None:
    question = SAMPLE[0]
    other = next(found for found in UUID.findall(question.prompt) if found not in (question.key, question.expected))
    assert not is_correct("", question)
    assert not is_correct(question.key, question)
    assert not is_correct(other, question)
    assert not is_correct(f"{question.expected} or {other}", question)
    assert not is_correct(question.expected[:-1], question)


@given(seed=st.integers(), length_tokens=st.integers(1000, 6000), count=st.integers(0, 7))
def test_any_seed_length_and_count_gives_answerable_questions(seed: int, length_tokens: int, count: int) -> None:
    found = questions(seed, LANGUAGES, [length_tokens], count)
    assert len(found) == count
    for question in found:
        assert is_correct(question.expected, question)
        assert lengths.estimate_tokens(question.prompt.encode()) <= length_tokens
