"""The words that people write in a table of attempts, and what Fairlead calls them.

Each function takes one cell's text and returns its value, or raises ValueError that says what to write instead.
"""

from __future__ import annotations

import re

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import FIRST_BUCKET_TOKENS, bounds_tokens, bucket_names, bucket_of

_LANGUAGE_NAMES = {
    "en": ("english", "eng", "ascii", "latin"),
    "ja": ("japanese", "jpn", "jp", "kana", "hiragana", "katakana"),
    "zh": ("chinese", "zho", "cn", "cjk", "han", "mandarin"),
    "ko": ("korean", "kor", "kr", "hangul"),
    "ru": ("russian", "rus", "cyrillic"),
    "el": ("greek", "ell", "gr"),
    "he": ("hebrew", "heb", "iw"),
    "ar": ("arabic", "ara"),
    "hi": ("hindi", "hin", "devanagari"),
    "th": ("thai", "tha"),
    "bn": ("bengali", "ben", "bangla"),
    "pa": ("punjabi", "pan", "gurmukhi"),
    "gu": ("gujarati", "guj"),
    "ta": ("tamil", "tam"),
    "te": ("telugu", "tel"),
    "kn": ("kannada", "kan"),
    "ml": ("malayalam", "mal"),
    "si": ("sinhala", "sin", "sinhalese"),
    "ka": ("georgian", "kat"),
    "hy": ("armenian", "hye"),
    "am": ("amharic", "amh", "ethiopic"),
    "km": ("khmer", "khm"),
    "my": ("burmese", "mya"),
    "lo": ("lao",),
    "other": ("others",),
}
_CODE_OF_NAME = {name: code for code, names in _LANGUAGE_NAMES.items() for name in (code, *names)}
_LENGTH = re.compile(r"(\d+)(?:\.0+)?(k?)")
_SHORTEST_LENGTH_TOKENS = 256  # a smaller number in a `bucket` column is an index or a slip, not a length
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RIGHT = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def language_index(text: str) -> int:
    """Index into LANGUAGES of a code or a common name, in any case, with or without a region (`zh-Hans`)."""
    name = text.strip().lower()
    code = _CODE_OF_NAME.get(name) or _CODE_OF_NAME.get(re.split("[-_]", name)[0])
    if code is None:
        raise ValueError(
            f"is not a language; write one of {', '.join(LANGUAGES)} (en is any text in Latin letters) "
            "or a name such as english, japanese, chinese"
        )
    return LANGUAGES.index(code)


def bucket_index(text: str, first_bucket_tokens: int = FIRST_BUCKET_TOKENS) -> int:
    """Index into the buckets of this scale, of a bucket's name (`4K`) or of a length in tokens (`4096`)."""
    name, names = text.strip().lower(), bucket_names(first_bucket_tokens)
    for index, known in enumerate(names):
        if name == known.lower():
            return index
    length = _LENGTH.fullmatch(name)
    if length is not None:
        tokens = int(length[1]) * (1024 if length[2] else 1)
        if tokens >= min(_SHORTEST_LENGTH_TOKENS, first_bucket_tokens):
            return bucket_of(tokens, bounds_tokens(first_bucket_tokens))
    raise ValueError(
        f"is not a length bucket; write one of {', '.join(names)} or a number of tokens such as {first_bucket_tokens}"
    )


def is_right(text: str) -> bool:
    """Whether the attempt was answered rightly."""
    try:
        return _RIGHT[text.strip().lower()]
    except KeyError:
        raise ValueError("does not say whether the answer was right; write true or false, 1 or 0") from None


def task_name(text: str) -> str:
    """A task family, which also names the file that is written."""
    if not _TASK.fullmatch(text.strip()):
        raise ValueError("cannot name a file; write letters, digits, dots, dashes and underscores")
    return text.strip()


def model_name(text: str) -> str:
    """A model, as the pool's engines name it."""
    if not text.strip():
        raise ValueError("is not a model; write the model's name as the engines serve it")
    return text.strip()
