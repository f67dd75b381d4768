"""Answers: questions found in any of their forms, and right as often as the capability says."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from fairlead.core.capability import Capability
from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.tools.demo.questions import questions
from fairlead.tools.simulate.answers import FILLER_TOKENS, Answerer, find_question
from fairlead.tools.simulate.tokens import tokenize


def capability(probability: float, **by_language: float) -> Capability:
    return Capability({name: (by_language.get(name, probability),) * len(BUCKETS) for name in LANGUAGES})


def uuids(count: int, seed: int = 0) -> list[str]:
    draw = Random(seed)
    return [str(UUID(int=draw.getrandbits(128))) for _ in range(count)]


def ask(answerer: Answerer, prompt: str, *, temperature: float = 0.0, max_tokens: int | None = None) -> str:
    answer = answerer.answer(
        prompt, prompt, prompt_tokens=len(prompt) // 2, max_tokens=max_tokens, temperature=temperature
    )
    return "".join(answer.tokens)


@pytest.mark.parametrize(
    "joined",
    ['"{}": "{}"', "'{}' : '{}'", "{}:{}", "{} = {}", "{} → {}", "鍵{}：{}である", "「{}」：「{}」", "“{}”=“{}”"],
)
def test_a_pair_is_found_in_json_and_in_prose(joined: str) -> None:
    key, value, other_key, other = uuids(4)
    question = find_question(
        f"{joined.format(key, value)}, {joined.format(other_key, other)} Key: {key}. The value is:"
    )
    assert question is not None
    assert (question.key, question.value, question.other_values) == (key, value, (other,))


def test_a_prompt_that_asks_for_no_key_gets_filler_up_to_its_limit() -> None:
    answerer = Answerer("m", capability(1.0), 0)
    data_alone = '"{}": "{}"'.format(*uuids(2))
    for prompt in ("Tell me a story", data_alone, f"{data_alone} What of {uuids(1, seed=5)[0]}?"):
        answer = answerer.answer(prompt, prompt, prompt_tokens=9, max_tokens=30, temperature=0)
        assert (len(answer.tokens), answer.cut) == (30, True)
        assert len(answerer.answer(prompt, prompt, prompt_tokens=9, max_tokens=None, temperature=0).tokens) == (
            FILLER_TOKENS
        )


def test_every_question_of_the_demo_is_understood() -> None:
    answerer = Answerer("m", capability(1.0), 0)
    for question in questions(3, ("en", "ja", "zh"), (4096,), 12):
        assert ask(answerer, question.prompt) == question.expected


def test_a_model_without_capability_answers_with_another_value_of_the_prompt() -> None:
    answerer = Answerer("m", capability(0.0), 0)
    for question in questions(4, ("en", "ja", "zh"), (4096,), 12):
        answer = ask(answerer, question.prompt)
        assert answer in question.prompt
        assert answer not in (question.expected, question.key)


def test_the_share_of_right_answers_is_the_capability_of_language_and_length() -> None:
    table = {name: (0.5,) * len(BUCKETS) for name in LANGUAGES}
    table["ja"] = (0.9, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0)
    answerer = Answerer("m", Capability(table), 0)

    def share(text: str, prompt_tokens: int) -> float:
        right = 0
        for seed in range(500):
            key, value, other_key, other = uuids(4, seed)
            prompt = f'"{key}": "{value}", "{other_key}": "{other}" {text} {key}'
            answer = answerer.answer(prompt, text, prompt_tokens=prompt_tokens, max_tokens=None, temperature=0)
            right += "".join(answer.tokens) == value
        return right / 500

    assert share("次の鍵の値は何ですか", 4000) == pytest.approx(0.9, abs=0.06)
    assert share("次の鍵の値は何ですか", 8000) == pytest.approx(0.2, abs=0.06)
    assert share("the value of", 8000) == pytest.approx(0.5, abs=0.08)


def test_at_temperature_0_the_same_model_repeats_itself_and_another_model_may_differ() -> None:
    prompts = [question.prompt for question in questions(5, ("en",), (4096,), 20)]
    first, other = Answerer("first", capability(0.5), 0), Answerer("other", capability(0.5), 0)
    answers = [ask(first, prompt) for prompt in prompts]
    assert [ask(first, prompt) for prompt in prompts] == answers
    assert [ask(other, prompt) for prompt in prompts] != answers


def test_above_temperature_0_each_ask_is_a_fresh_draw_and_the_seed_repeats_the_row() -> None:
    question = questions(6, ("en",), (4096,), 1)[0]
    rows = [[ask(answerer, question.prompt, temperature=0.7) for _ in range(20)] for answerer in _twice(seed=3)]
    assert rows[0] == rows[1]
    assert len(set(rows[0])) > 1


def _twice(seed: int) -> tuple[Answerer, Answerer]:
    return Answerer("m", capability(0.5), seed), Answerer("m", capability(0.5), seed)


def test_a_limit_cuts_the_answer_and_ignore_eos_fills_it_up() -> None:
    question = questions(7, ("en",), (4096,), 1)[0]
    answerer = Answerer("m", capability(1.0), 0)
    cut = answerer.answer(question.prompt, "", prompt_tokens=9, max_tokens=3, temperature=0)
    assert (len(cut.tokens), cut.cut) == (3, True)
    assert question.expected.startswith("".join(cut.tokens))
    filled = answerer.answer(question.prompt, "", prompt_tokens=9, max_tokens=99, temperature=0, ignore_eos=True)
    assert (len(filled.tokens), filled.cut) == (99, True)
    assert tokenize("".join(filled.tokens), 16, 999).count == 99
