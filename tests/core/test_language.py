"""Languages told from character classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.language import LANGUAGES, detect, sample

UUIDS = " ".join(["6ab6ea3e-f288-4f33-bad6-7f42bb75b03f"] * 10)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is the value of this key?", "en"),
        ("Quelle est la capitale de l'Inde ? Où ça ?", "en"),
        ("指定されたキーに対応する値は何ですか", "ja"),
        ("カタカナ", "ja"),
        ("与指定键关联的值是什么", "zh"),
        ("지정된 키의 값은 무엇입니까", "ko"),
        ("Какое значение у этого ключа?", "ru"),
        ("Ποια είναι η τιμή;", "el"),
        ("מה הערך של המפתח", "he"),
        ("ما هي قيمة المفتاح", "ar"),
        ("इस कुंजी का मान क्या है", "hi"),
        ("ค่าของคีย์นี้คืออะไร", "th"),
        ("ამ გასაღების მნიშვნელობა", "other"),
        ("", "en"),
        ("1234 5678", "en"),
    ],
)
def test_a_sentence_is_told_by_its_script(text: str, language: str) -> None:
    assert detect(text) == language


@pytest.mark.parametrize(
    ("question", "language"), [("キーの値は？", "ja"), ("该键的值是什么？", "zh"), ("value of the key", "en")]
)
def test_identifiers_have_no_language(question: str, language: str) -> None:
    assert detect(UUIDS + question) == language


def test_a_foreign_name_does_not_make_a_sentence_foreign() -> None:
    assert detect("Please write a short note about the city of 東京 and its trains, with three examples.") == "en"


def test_a_question_after_a_long_context_is_in_the_sample() -> None:
    assert sample("x" * 10_000 + "値は？").endswith("値は？")


@given(st.text(max_size=600))
def test_any_text_has_one_of_the_languages(text: str) -> None:
    assert detect(text) in LANGUAGES
