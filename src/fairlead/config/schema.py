"""The configuration as a JSON Schema, for editors, and what one key means, for people.

Both come from the sections themselves: a key's explanation is the comment that stands at it.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from pydantic import BaseModel

from fairlead.config.document import Config
from fairlead.config.policy import PolicyConfig
from fairlead.errors import UserError
from fairlead.policies import policy_names
from fairlead.section import Section

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


@cache
def json_schema() -> Schema:
    """The whole configuration's schema, with every key's explanation as its description."""
    schema: Schema = {"$schema": _DIALECT} | Config.model_json_schema() | {"title": "fairlead.yaml"}
    sections: dict[str, type[BaseModel]] = {cls.__name__: cls for cls in _below(Section)}
    sections[PolicyConfig.__name__] = PolicyConfig
    for name, definition in (("Config", schema), *schema["$defs"].items()):
        comments = _comments(sections[name])
        for key, field in definition["properties"].items():
            field.pop("title", None)
            if key in comments:
                field["description"] = comments[key]
    schema["$defs"]["PolicyConfig"]["properties"]["name"]["enum"] = list(policy_names())
    return schema


def explained(path: str) -> str:
    """What the key at a dotted path means. Raises UserError where there is none.

    Entries of lists and names that users give are one step each: `pool.endpoints.0.address`, `pool.models.NAME`.
    """
    field = json_schema()
    walked = "the configuration"
    for step in re.sub(r"\[(\w*)\]", r".\1", path).split("."):
        options = list(_options(field))
        keys = {key: value for option in options for key, value in option.get("properties", {}).items()}
        inner = [option.get("items") or option.get("additionalProperties") for option in options]
        named = [each for each in inner if isinstance(each, dict)]
        if step in keys:
            field = keys[step]
        elif named:
            field = named[-1]
        else:
            close = get_close_matches(step, keys, n=1)
            hint = f"do you mean {close[0]}?" if close else f"it has {', '.join(keys)}" if keys else "it is a value"
            if any(option.get("additionalProperties") is True for option in options):
                hint = "its parameters are those of the policy that it names; see docs/policies.md"
            raise UserError(f'{walked} has no key "{step}"; {hint}')
        walked = step
    return "\n".join(_lines(path, field))


def _lines(path: str, field: Schema) -> Iterator[str]:
    yield path
    options = list(_options(field))
    text = field.get("description") or next((o["description"] for o in options if "description" in o), "")
    if text:
        yield f"  {text}"
    yield f"  type: {' or '.join(dict.fromkeys(_kind(option) for option in options))}"
    if "default" in field:
        yield f"  default: {json.dumps(field['default'])}"
    keys = [key for option in options for key in option.get("properties", {})]
    if keys:
        yield f"  keys: {', '.join(keys)}"


def _options(field: Schema) -> Iterator[Schema]:
    """The forms that a value may take, references resolved."""
    if "$ref" in field:
        yield from _options(json_schema()["$defs"][field["$ref"].rpartition("/")[2]])
        return
    forms = field.get("anyOf") or field.get("oneOf")
    if forms is None:
        yield field
        return
    for form in forms:
        yield from _options(form)


def _kind(option: Schema) -> str:
    if "enum" in option or "const" in option:
        return " | ".join(map(str, option.get("enum", [option.get("const")])))
    kind = {"object": "mapping", "array": "list", "null": "nothing", "integer": "whole number", "string": "text"}
    bounds = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{words} {option[key]:g}" for key, words in bounds.items() if key in option]
    shown = kind.get(option.get("type", ""), str(option.get("type", "any")))
    return f"{shown} ({', '.join(limits)})" if limits else shown


def _below(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in cls.__subclasses__():
        yield each
        yield from _below(each)


def _comments(section: type[BaseModel]) -> Mapping[str, str]:
    """The comment at each key of a section's source."""
    source = inspect.getsource(section)
    by_line = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa")
    }
    found = {}
    (cls,) = ast.parse(source).body
    assert isinstance(cls, ast.ClassDef)
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if said := " ".join(by_line[line] for line in lines if line in by_line):
                found[node.target.id] = said
    return found
