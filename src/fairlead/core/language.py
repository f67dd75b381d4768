"""Which language a text is in, told from the classes of its characters alone (LAAR, section 5.4).

A language here stands for its script: `en` is any text in Latin letters, `ru` any in Cyrillic. That is what accuracy
tables can be fitted on for nothing. This is not language identification: French is `en`.
"""

from __future__ import annotations

import re
from typing import Final

LANGUAGES: Final = ("en", "ja", "zh", "ko", "ru", "el", "he", "ar", "hi", "th", "other")

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
)
_LETTER = re.compile(r"[^\W\d_]+")
_IDENTIFIER = re.compile(r"[0-9A-Za-z_\-]*[0-9][0-9A-Za-z_\-]*|https?://\S+")  # UUIDs and keys have no language

LATIN_LETTERS_PER_WORD: Final = 4.0  # so that a Latin word weighs as much as a kana or a Chinese character
KANA_SHARE_OF_JAPANESE: Final = 0.1  # Japanese mixes kanji with kana; Chinese has no kana at all
SAMPLE_CHARACTERS: Final = 128  # from either end


def sample(text: str) -> str:
    """The start and the end of a long text: an instruction stands before its context or a question after it."""
    if len(text) <= 2 * SAMPLE_CHARACTERS:
        return text
    return f"{text[:SAMPLE_CHARACTERS]}\n{text[-SAMPLE_CHARACTERS:]}"


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
        best, weight = ("ja" if kana > KANA_SHARE_OF_JAPANESE * east_asian else "zh"), east_asian
    if weight >= _count(_LETTER, text) / 2:  # already more than half: no other script can lead
        return best
    for language, script in _SCRIPTS:
        count = _count(script, text) / (1.0 if language == "ko" else 2.0)
        if count > weight:
            best, weight = language, count
    return best if weight > 0 else "other"


def _count(script: re.Pattern[str], text: str) -> int:
    """Characters of `text` that are of `script`, a pattern of runs: a match for each character would cost more."""
    return len("".join(script.findall(text)))
