"""The line of each key of a YAML file, read in the same pass as its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from fairlead.config.errors import ConfigError, KeyPath, dotted

_MERGE = "tag:yaml.org,2002:merge"
_KEYS = frozenset({"tag:yaml.org,2002:str", "tag:yaml.org,2002:int"})
_MOST_LEVELS = 32
_MOST_REPEATED = 100_000  # nine lines of ten aliases each stand for a thousand million values
_TOO_DEEP = f"lists and mappings are nested over {_MOST_LEVELS} deep, or an alias contains itself; write it flatter"


class Document(NamedTuple):
    """A file's values, and its `lines` by dotted path, `pool.endpoints[3].address`."""

    value: Any
    lines: dict[str, int]


def read_yaml(text: str, source: str) -> Document:
    """Raises ConfigError for what is not YAML, a key written twice, and values nested too deep or repeated too much."""
    try:
        loader = yaml.SafeLoader(text)
        tree = loader.get_single_node()
        if tree is None:
            return Document(None, {})
        lines: dict[str, int] = {}
        most = len(text) + _MOST_REPEATED  # each value that is written takes a character
        for number, (path, line) in enumerate(_lines(tree, source)):
            if number > most:
                message = f"aliases repeat over {_MOST_REPEATED} values; use fewer"
                raise ConfigError(f"{source}:1: {dotted(path[:1])}: {message}")
            lines[dotted(path)] = line
        return Document(loader.construct_document(tree), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark and error.problem == "but found another document":
            raise ConfigError(f"{source}:{mark.line + 1}: a second document begins; write one, without ---") from None
        raise ConfigError(f"{source}:{mark.line + 1 if mark else 1}: not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"not YAML: the character U+{ord(text[error.position]):04X} may not stand in a file; remove it"
        raise ConfigError(f"{source}:{line}: {message}") from None
    except RecursionError:
        raise ConfigError(f"{source}:1: {_TOO_DEEP}") from None
    except ValueError as error:  # an invalid date or number: 2026-02-31
        raise ConfigError(f"{source}:1: not YAML: {error}; write text in quotes") from None


def _lines(node: yaml.Node, source: str, path: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    """Every key's path and its line; if a path comes twice, the later line counts."""
    line = node.start_mark.line + 1
    if len(path) > _MOST_LEVELS:
        raise ConfigError(f"{source}:{line}: {dotted(path[:4])}: {_TOO_DEEP}")
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            at = f"{source}:{key.start_mark.line + 1}: "
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{at}a list or a mapping stands where a key must be; write key: value")
            if key.tag == _MERGE:  # keys next to it override what it merges in
                for merged in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                    yield from _lines(merged, source, path)
                continue
            if key.tag not in _KEYS:
                raise ConfigError(f'{at}{dotted((*path, key.value))}: the key is not read as text; write "{key.value}"')
            if key.value in seen:
                raise ConfigError(f'{at}{dotted((*path, key.value))}: the key "{key.value}" is written twice')
            seen.add(key.value)
            yield from _lines(value, source, (*path, key.value))
            yield (*path, key.value), key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, source, (*path, index))
    yield path, line
