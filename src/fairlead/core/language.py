"""Which language a text is in, from the classes of its characters alone (LAAR, section 5.4).

A language here stands for its script: `en` is any text in Latin letters, `ru` any in Cyrillic. That is what accuracy
tables can be fitted on at no cost. This is not language identification: French is `en`.

Of a prompt the question decides (`of_prompt`), not the document that it is about: the answer must be in the language of
the question, and what accuracy tables are fitted on are questions in a language.
"""

from __future__ import annotations

import re
from typing import Final

LANGUAGES: Final = (
    "en", "ja", "zh", "ko", "ru", "el", "he", "ar", "hi", "th", "bn", "pa", "gu", "ta", "te", "kn", "ml", "si", "ka",
    "hy", "am", "km", "my", "lo", "other",
)  # fmt: skip

_KANA = re.compile("[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]+")
_CJK = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff\uff21-\uff5a]+")
_SCRIPTS: Final = (
    ("ko", re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]+")),
    ("ru", re.compile("[\u0400-\u052f]+")),
    ("el", re.compile("[\u0370-\u03ff\u1f00-\u1fff]+")),
    ("he", re.compile("[\u0590-\u05ff]+")),
    ("ar", re.compile("[\u0600-\u06ff\u0750-\u077f]+")),
    ("hi", re.compile("[\u0900-\u097f]+")),
    ("th", re.compile("[\u0e00-\u0e7f]+")),
    ("bn", re.compile("[\u0980-\u09ff]+")),
    ("pa", re.compile("[\u0a00-\u0a7f]+")),
    ("gu", re.compile("[\u0a80-\u0aff]+")),
    ("ta", re.compile("[\u0b80-\u0bff]+")),
    ("te", re.compile("[\u0c00-\u0c7f]+")),
    ("kn", re.compile("[\u0c80-\u0cff]+")),
    ("ml", re.compile("[\u0d00-\u0d7f]+")),
    ("si", re.compile("[\u0d80-\u0dff]+")),
    ("ka", re.compile("[\u10a0-\u10ff\u1c90-\u1cbf\u2d00-\u2d2f]+")),
    ("hy", re.compile("[\u0530-\u058f]+")),
    ("am", re.compile("[\u1200-\u139f\u2d80-\u2ddf]+")),
    ("km", re.compile("[\u1780-\u17ff]+")),
    ("my", re.compile("[\u1000-\u109f]+")),
    ("lo", re.compile("[\u0e80-\u0eff]+")),
)
_LINE_END = re.compile(r"\n|\\n")  # in JSON it is escaped
_WORD = re.compile(r"[^\W\d_]{2}")
_QUESTION_MARK = re.compile("[?\uff1f\u061f\u037e]")
_LETTER = re.compile(r"[^\W\d_]+")
_IDENTIFIER = re.compile(r"[0-9A-Za-z_\-]*[0-9][0-9A-Za-z_\-]*|https?://\S+")  # UUIDs and keys have no language

LATIN_LETTERS_PER_WORD: Final = 4.0  # so that a Latin word weighs as much as a kana or a Chinese character
KANA_SHARE_OF_JAPANESE: Final = 0.1  # Japanese mixes kanji with kana, and with fewer its characters decide
_CHARACTER_SETS: Final = ("shift_jis", "gb2312", "big5")  # in common use in Japan, mainland China and Taiwan
SAMPLE_CHARACTERS: Final = 128  # from either end


def sample(text: str) -> str:
    """The start and the end of a long text: an instruction stands before its context or a question after it."""
    if len(text) <= 2 * SAMPLE_CHARACTERS:
        return text
    return f"{text[:SAMPLE_CHARACTERS]}\n{text[-SAMPLE_CHARACTERS:]}"


def of_prompt(text: str) -> str:
    """One of LANGUAGES for a prompt, whose first and last 128 characters are looked at.

    A short line at one end is the question, and what is next to it the document. Between two such lines one with a
    question mark decides, then one that is not in Latin letters, as those are found in text of any language.
    """
    first, last = _first_line(text[:SAMPLE_CHARACTERS]), _last_line(text[-SAMPLE_CHARACTERS:])
    if not first or not last:
        return detect(first or last or sample(text))
    before, after = detect(first), detect(last)
    if before == after or _QUESTION_MARK.search(last):
        return after
    return before if after == "en" or _QUESTION_MARK.search(first) else after


def _first_line(start: str) -> str:
    """The first line with words; empty where it has no end in `start`."""
    *lines, _ = _LINE_END.split(start)
    return next((line for line in lines if _WORD.search(line)), "")


def _last_line(end: str) -> str:
    """The last line with words; empty where it has no beginning in `end`."""
    _, *lines = _LINE_END.split(end)
    return next((line for line in reversed(lines) if _WORD.search(line)), "")


def detect(text: str) -> str:
    """One of LANGUAGES for `text`, which should be short (see `sample`). Text without letters is `en`."""
    if text.isascii():
        return "en"
    text = _IDENTIFIER.sub(" ", text)
    kana, cjk = _count(_KANA, text), _count(_CJK, text)
    latin = _count(_LATIN, text) / LATIN_LETTERS_PER_WORD
    east_asian = kana + cjk
    best, weight = "en", latin
    if east_asian > weight:
        is_japanese = kana > KANA_SHARE_OF_JAPANESE * east_asian or _is_kanji("".join(_CJK.findall(text)))
        best, weight = ("ja" if is_japanese else "zh"), east_asian
    if weight >= _count(_LETTER, text) / 2:  # already more than half: no other script can lead
        return best
    for language, script in _SCRIPTS:
        count = _count(script, text) / (1.0 if language == "ko" else 2.0)
        if count > weight:
            best, weight = language, count
    return best if weight > 0 else "other"


def _is_kanji(characters: str) -> bool:
    """Whether characters without kana are Japanese: the reforms of Japan and China simplified others of them.

    What all three sets have, such as the name of a city, is taken for Chinese.
    """
    japanese, mainland, taiwan = (len(characters.encode(name, "ignore")) for name in _CHARACTER_SETS)
    return japanese > max(mainland, taiwan)


def _count(script: re.Pattern[str], text: str) -> int:
    """Characters of `text` that are of `script`, a pattern of runs: a match for each character would cost more."""
    return len("".join(script.findall(text)))
