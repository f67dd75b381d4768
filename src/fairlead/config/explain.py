"""Validation errors in a user's terms: pydantic speaks of tuples, instances and inputs, a user of lists and keys.

`_SENTENCES` has a sentence for each kind of mistake that our schema can find. Any other kind gets one general sentence,
never pydantic's own; the tests try every kind of value at every key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fairlead.config.errors import InvalidAtError, InvalidInPlacesError, KeyPath, dotted, line_of
from fairlead.config.routes import CASCADE_TAG, MODELS_TAG, SPLIT_TAG

_NUMBER: Final = "must be a number{shown}{plain}"
_WHOLE: Final = "must be a whole number{shown}{plain}"
_MAPPING: Final = "must be a mapping of keys to values{shown}"
_LIST: Final = "must be a list, for example [a, b]{shown}"
_EXPONENTIAL: Final = re.compile(r"[-+]?[0-9]{1,15}(\.[0-9]{1,15})?[eE][-+]?[0-9]{1,2}", re.ASCII)
_KEY: Final = "a key must be text; put it in quotes"

_SENTENCES: Final[Mapping[str, str]] = {
    "missing": "is required",
    "string_type": "must be text{shown}; put it in quotes",
    "string_too_short": "is empty; write a text",
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "is too large",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number{shown}",
    "bool_type": "must be true or false{shown}",
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dict_type": _MAPPING,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "too_short": "needs {min_length} or more entries, there are {actual_length}",
    "too_long": "may have {max_length} entries, there are {actual_length}",
    "greater_than": "must be more than {gt}{shown}",
    "greater_than_equal": "must be {ge} or more{shown}",
    "less_than": "must be less than {lt}{shown}",
    "less_than_equal": "must be {le} or less{shown}",
    "literal_error": "must be {expected}{shown}",
    "invalid_key": _KEY,
    "string_pattern_mismatch": "may have letters, digits, dots, dashes and underscores{shown}",
}


def explain(
    error: ValidationError, kind: type[BaseModel], lines: Mapping[str, int], source: str, page: str
) -> Iterator[str]:
    """A line for each mistake in a document that should be a `kind`: `file:line: key.path: what to change`."""
    problems = error.errors(include_url=False)
    wrong = [_path(problem) for problem in problems]
    for problem, path in zip(problems, wrong, strict=True):
        if problem["type"] == "too_short" and any(len(p) > len(path) and p[: len(path)] == path for p in wrong):
            continue  # it has entries, which are wrong themselves
        for place, message in _message(problem, path, kind, page):
            yield f"{source}:{line_of(dotted(place), lines)}: {dotted(place)}: {message}"


def _path(problem: ErrorDetails) -> KeyPath:
    return tuple(part for part in problem["loc"] if part not in (MODELS_TAG, CASCADE_TAG, SPLIT_TAG, "[key]"))


def _message(problem: ErrorDetails, path: KeyPath, kind: type[BaseModel], page: str) -> Iterable[tuple[KeyPath, str]]:
    limits = problem.get("ctx", {})
    cause = limits.get("error")
    if isinstance(cause, InvalidInPlacesError):
        return [((*path, *place.path), str(place)) for place in cause.places]
    if isinstance(cause, InvalidAtError):
        return [((*path, *cause.path), str(cause))]
    if isinstance(cause, ValueError):
        return [(path, str(cause))]
    if problem["type"] == "extra_forbidden":
        return [(path, _unknown_key(path, kind, page))]
    if "[key]" in problem["loc"] or problem["type"] == "invalid_key":
        return [((*path[:-1], str(path[-1])), _KEY)]
    if problem["input"] is None and problem["type"] != "missing":
        return [(path, "is empty; write something after the colon, or remove the key")]
    sentence = _SENTENCES.get(problem["type"], "cannot be used; see {page} for what may stand here")
    values = {name: _plain(limit) for name, limit in limits.items()}
    values |= {"shown": _shown(problem["input"]), "plain": _in_plain_digits(problem["input"]), "page": page}
    return [(path, sentence.format(**values))]


def _plain(limit: object) -> object:
    """3600.0 as 3600, 'a' as a."""
    if isinstance(limit, float) and limit.is_integer():
        return int(limit)
    return limit.replace("'", "") if isinstance(limit, str) else limit


def _unknown_key(path: KeyPath, kind: type[BaseModel], page: str) -> str:
    known = _sibling_keys(path, kind)
    if path[-1] in known:  # of another kind of entry
        return "cannot stand together with the other keys here; remove it"
    near = get_close_matches(str(path[-1]), known, n=1)
    hint = f'unknown key; did you mean "{near[0]}"?' if near else "unknown key."
    return f"{hint} Known keys: {', '.join(known)} ({page})" if known else f"unknown key; see {page}"


def _sibling_keys(path: KeyPath, kind: type[BaseModel]) -> list[str]:
    """The keys allowed at the level of the last key of `path`."""
    kinds = {kind}
    for part in path[:-1]:
        fields = [model.model_fields[part].annotation for model in kinds if part in model.model_fields]
        if fields:  # else a list index or a name in a mapping: its values are still of these kinds
            kinds = {model for annotation in fields for model in _models_in(annotation)}
    return [name for model in kinds for name in model.model_fields]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _shown(value: object) -> str:
    """The written value, if it is short; a URL may contain a password."""
    if isinstance(value, bool):
        return f", not {str(value).lower()}"
    if not isinstance(value, str | int | float) or "://" in str(value) or len(str(value)) > 40:
        return ""
    return f', not "{value}"' if isinstance(value, str) else f", not {value}"


def _in_plain_digits(value: object) -> str:
    """What to write for 1e9, a number only to YAML 1.2 and to editors."""
    if not isinstance(value, str) or not _EXPONENTIAL.fullmatch(value):
        return ""
    return f", which YAML reads as text; write {Decimal(value):f}"
