"""Whether a prompt speaks of documents by their positions ("the first document", "result 3"): then their order stays.

English is read well, and the usual words of some other languages. Names that look like positions ("document 7" where
ids are numbers) count as positions too.
"""

from __future__ import annotations

import re
from typing import Final

MOST_BYTES: Final = 32 * 1024  # some 4 ms; in longer texts anything may be said

_REACH: Final = 5  # words from an ordinal to what it counts: "the first two really relevant documents"
_TOKEN: Final = re.compile(r"\w+|\[\d{1,3}(?:\s?[,;–-]\s?\d{1,3})*\]|【\d{1,3}|#\d{1,3}\b|[^\w\s]")
_NTH: Final = re.compile(r"\d{1,3}(?:st|nd|rd|th|er|e|o|a|º|ª)\Z")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOUNS: Final = _words(
    "document documents doc docs passage passages context contexts source sources result results article "
    "articles text texts paper papers item items entry entries snippet snippets excerpt excerpts abstract "
    "abstracts file files report reports chunk chunks reference references paragraph paragraphs page pages "
    "record records row rows one ones hit hits dokument dokumente dokuments quelle quellen artikel texte "
    "documento documentos documenti textos testo testi fuente fuentes fonte fonti fontes résultat résultats "
    "resultado resultados risultato risultati документ документа документе документы источник источнике"
)
_ORDINALS: Final = _words(
    "first second third fourth fifth sixth seventh eighth ninth tenth last final penultimate middle top "
    "bottom previous preceding next subsequent erste ersten erstes erster zweite zweiten zweites zweiter dritte "
    "dritten drittes dritter letzte letzten letztes letzter premier première premiers premières deuxième "
    "troisième dernier dernière derniers dernières primer primero primera primeros primeras segundo segunda "
    "tercero tercera último última últimos últimas primo prima primi prime secondo terzo terza ultimo ultima "
    "ultimi ultime primeiro primeira terceiro terceira opening initial topmost"
)
_ARTICLES: Final = _words("the das der die den dem le la les el los las il lo i gli o os as")
_AFTER_ALONE: Final = _words(
    "? . , ; : ! ) and or of to und oder et ou y o e is are was were does do did has have says say said claims claim "
    "states state mentions mention contradicts contradict agrees agree disagrees disagree differs differ supports "
    "support argues argue true false right wrong correct above below on onward onwards sagt ist "
    "sind richtig falsch dit est dice es è"
)
_AMOUNTS: Final = _words("two three four five six seven eight nine ten 2 3 4 5 6 7 8 9 10")
_NUMBERS: Final = _words("one two three four five six seven eight nine ten b c d e f g h")
_BEFORE_NUMBER: Final = _words("number numbers no nr nos nummer # № ( [ . numéro número numero")
_PLACED: Final = _words(
    "listed come comes came appear appears appeared appearing mentioned given shown presented ranked placed"
)
_PLACES: Final = _words("first second third last earliest latest before after earlier later")
_ENDS: Final = _words("top bottom beginning end start middle front back")
_ORDERS: Final = _words("order ordering sequence reihenfolge ordre orden ordine ordem")
_ALONE: Final = _words(
    "respectively chronological chronologically position positions nth former latter consecutive consecutively"
)
_COUNTED: Final = re.compile(r"(?:文档|文件|文書|資料|资料|段落|문서|자료|№)\s?\d")
_PARTS: Final = (
    "第", "番目", "つ目", "번째", "最初", "最後", "最后", "перв", "второ", "трет", "последн", "첫", "마지막",
    "الأول", "الثاني", "الثالث", "الأخير", "הראשו", "השני", "השלישי", "האחרו", "पहल", "दूसर", "तीसर", "आखिर", "अंतिम",
)  # fmt: skip
_COUNTING: Final = _words("number no nr nummer numéro número numero")
_TRIGGERS: Final = _NOUNS | _ORDINALS | _PLACED | _ORDERS | _ALONE | _COUNTING


def speaks_of_positions(text: bytes) -> bool:
    """Whether a text may mean documents by where they stand. True for one too long to be searched."""
    if len(text) > MOST_BYTES:
        return True
    said = text.decode("utf-8", "replace").lower()
    if not said.isascii() and (any(part in said for part in _PARTS) or _COUNTED.search(said)):
        return True
    tokens = _TOKEN.findall(said.replace("_", " "))
    return any(_is_position(tokens, place) for place, token in enumerate(tokens) if _may_begin(token))


def _may_begin(token: str) -> bool:
    if token in _TRIGGERS:
        return True
    if token.isalpha() or len(token) == 1:
        return False
    if token[0].isdigit():
        return _NTH.match(token) is not None
    return _is_mark(token) or (token[-1].isdigit() and token.rstrip("0123456789") in _NOUNS)


def _is_mark(token: str) -> bool:
    """ "[2]", "[1, 2]", "【2】" or "#2"."""
    return len(token) > 1 and token[0] in "[#【"


def _is_position(tokens: list[str], place: int) -> bool:
    token = tokens[place]
    before = tokens[place - 1] if place else ""
    following = tokens[place + 1 : place + 1 + _REACH]
    after = following[0] if following else "."
    if token in _ALONE or _is_mark(token) or token[-1].isdigit():
        return True
    if token in _COUNTING:  # "no 2" may be no number
        return _is_number(following[1:2] if after == "." else [] if token == "no" else [after])
    if token in _ORDERS:
        return after != "to"
    if token in _PLACED:
        return after in _PLACES
    if token in _NOUNS and (_is_number(following) or _names_an_end(following)):
        return True
    if token not in _NOUNS or token in _ORDINALS:  # an ordinal
        if after in _AMOUNTS:  # "the first two"
            after = following[1] if len(following) > 1 else "."
        if before in _ARTICLES and after in _AFTER_ALONE:
            return True
        return any(word in _NOUNS for word in _up_to_a_stop(following))
    return False


def _is_number(following: list[str]) -> bool:
    for token in following:
        if token not in _BEFORE_NUMBER:
            return token in _NUMBERS or (token.isdecimal() and len(token) <= 3)
    return False


def _names_an_end(following: list[str]) -> bool:
    """ "the document listed at the top"."""
    words = list(_up_to_a_stop(following))
    return any(word in _ENDS and words[number - 1] in _ARTICLES for number, word in enumerate(words) if number)


def _up_to_a_stop(tokens: list[str]) -> list[str]:
    for number, token in enumerate(tokens):
        if not token[0].isalnum() and token not in "-'’":
            return tokens[:number]
    return tokens
