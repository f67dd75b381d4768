"""Mistakes are told in our words: every kind of value at every key of the configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from fairlead.config import Config, ConfigError, parse

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 1e300, float("nan"), float("inf"), "", "x", ":9003", "redis://u:secret@h", "2026-01-01",
    [], [1], [[]], {}, {"x": 1}, {"1": {}},
)  # fmt: skip
PYDANTIC = re.compile(r"Input should|valid (dict|list|int|str|num)|instance of|[Tt]uple|at least \d|Config\b|valida")
POOL = {"endpoints": [{"address": "127.0.0.1:8000", "model": "m"}]}


def places(kind: type[BaseModel], below: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every key that a configuration may have; names in a mapping are m, places in a list 0."""
    for name, field in kind.model_fields.items():
        yield (*below, name)
        for path, inner in kinds(field.annotation):
            yield (*below, name, *path)
            yield from places(inner, (*below, name, *path))


def kinds(annotation: Any, below: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], type[BaseModel]]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield below, annotation
    origin = getattr(annotation, "__origin__", None)
    step = ("m",) if origin is dict else (0,) if origin is tuple else ()
    for part in get_args(annotation):
        yield from kinds(part, (*below, *step))


def document(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A configuration that has `value` at `path`."""
    for part in reversed(path):
        value = [value] if part == 0 else {part: value}
    whole: dict[str, Any] = {"pool": POOL} | value
    return whole


PLACES = tuple(dict.fromkeys(places(Config)))


def test_every_key_is_tried() -> None:
    assert len(PLACES) > 80
    assert ("routes", "m", "judge", "url") in PLACES


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_no_value_at_any_key_is_answered_in_the_librarys_words_or_without_a_line(path: tuple[Any, ...]) -> None:
    for value in VALUES:
        text = yaml.safe_dump(document(path, value), sort_keys=False)
        try:
            parse(text, "f.yaml")
        except ConfigError as error:
            for line in str(error).splitlines():
                assert re.match(r"f\.yaml:\d+: [\w*.\[\] ]+: \S", line), line
                assert not PYDANTIC.search(line), line
                assert "secret" not in line or path[:2] != ("sessions", "store"), line
                assert "cannot be used; see" not in line, line
