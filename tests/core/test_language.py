"""Languages told from character classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.language import LANGUAGES, detect, of_prompt, sample

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
        ("এই কী-এর মান কত", "bn"),
        ("இந்த விசையின் மதிப்பு என்ன", "ta"),
        ("ఈ కీ విలువ ఏమిటి", "te"),
        ("ამ გასაღების მნიშვნელობა", "ka"),
        ("Ինչ է այս բանալու արժեքը", "hy"),
        ("ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ", "other"),
        ("日本国憲法全文", "ja"),
        ("東京都渋谷区天気予報", "ja"),
        ("売上高対前年比", "ja"),
        ("中华人民共和国宪法全文", "zh"),
        ("臺灣的憲法與歷史", "zh"),
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


ENGLISH = "The harbour of this old town was built by merchants who came from many countries. " * 20
JAPANESE = "港は古い町の商人たちによって作られ、多くの国から船が羊毛や木材や塩を運んできた。" * 20


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (f"{ENGLISH}\n\nこの町を作ったのは誰ですか？", "ja"),
        (f"次の文章を要約してください。\n\n{ENGLISH}", "ja"),
        (f"次の文章を要約してください。\n\n{ENGLISH}\n\nAnswer:", "ja"),
        (f"{JAPANESE}\n\nWho built this town?", "en"),
        (f"Summarise this text.\n\n{JAPANESE}", "en"),
        (f"Use the text.\n\n{JAPANESE}\n\nDans quelle ville où ça ?", "en"),
        (f"{ENGLISH}\n\n这座城市是谁建的？", "zh"),
        (f"{ENGLISH}\n\nКто построил этот город?", "ru"),
        ("こんにちは", "ja"),
        (JAPANESE, "ja"),
        (f"{ENGLISH}{JAPANESE}", "ja"),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\\n"])
def test_the_question_decides_and_not_its_document(text: str, language: str, line_end: str) -> None:
    assert of_prompt(text.replace("\n", line_end)) == language


@given(st.text(max_size=600))
def test_any_prompt_has_one_of_the_languages(text: str) -> None:
    assert of_prompt(text) in LANGUAGES


@given(st.text(max_size=600))
def test_any_text_has_one_of_the_languages(text: str) -> None:
    assert detect(text) in LANGUAGES
