"""From YAML text to a validated document, or to errors that name the file, the line, the key and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from fairlead.config.document import Config
from fairlead.config.errors import ConfigError
from fairlead.config.explain import explain
from fairlead.config.lines import read_yaml


def load(path: Path) -> Config:
    """Read and validate `path`. Raises ConfigError for anything that is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); pass --config with the path of a file") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: is not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    return parse(text, str(path))


def parse(text: str, source: str = "fairlead.yaml") -> Config:
    """Validate YAML `text`; `source` is the file name in errors. Raises ConfigError."""
    return parse_as(Config, text, source, "pool", "docs/configuration.md")


_Kind = TypeVar("_Kind", bound=BaseModel)


def parse_as(kind: type[_Kind], text: str, source: str, key: str, page: str) -> _Kind:
    """Validate YAML `text` as a `kind`, a mapping with at least `key`; `page` explains it. Raises ConfigError."""
    document = read_yaml(text, source)
    if not isinstance(document.value, dict):
        raise ConfigError(f"{source}:1: the file must be a mapping with the key {key}; see {page}")
    try:
        validated = kind.model_validate(document.value)
    except ValidationError as error:
        raise ConfigError("\n".join(explain(error, kind, document.lines, source, page))) from None
    if isinstance(validated, Config):
        validated.remember(source, document.lines)
    return validated
