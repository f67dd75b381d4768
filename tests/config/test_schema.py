"""The JSON Schema for editors, and what `check --explain` says of one key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.config.schema import explained, json_schema
from fairlead.errors import UserError

DOCS = Path(__file__).parents[2] / "docs"


def keys(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, definition in (("Config", schema), *schema["$defs"].items()):
        for key, field in definition["properties"].items():
            yield name, key, field


def test_the_published_schema_is_that_of_the_configuration() -> None:
    published = json.loads((DOCS / "fairlead.schema.json").read_text(encoding="utf-8"))
    assert published == json_schema(), "write it again: fairlead check --schema > docs/fairlead.schema.json"


def test_unknown_keys_are_marked_everywhere_but_in_a_policys_parameters() -> None:
    schema = json_schema()
    open_to_more = [name for name, each in schema["$defs"].items() if each.get("additionalProperties") is not False]
    assert (open_to_more, schema["additionalProperties"]) == (["PolicyConfig"], False)


def test_every_number_has_an_explanation_of_its_own_or_a_unit_in_its_name() -> None:
    units = ("_ms", "_s", "_tokens", "_bytes", "_per_token", "_mb", "_ratio", "_len", "_per_second", "_entries")
    bare = [
        f"{section}.{key}"
        for section, key, field in keys(json_schema())
        if field.get("type") in ("integer", "number") and "description" not in field and not key.endswith(units)
    ]
    assert bare == []


def test_a_key_is_explained_with_its_type_its_bounds_and_its_default() -> None:
    assert explained("observe.rtt_alpha").splitlines() == [
        "observe.rtt_alpha",
        "  weight of the newest round trip in the smoothed one",
        "  type: number (more than 0, at most 1)",
        "  default: 0.3",
    ]


@pytest.mark.parametrize(
    "path", ["pool.endpoints[0].address", "pool.endpoints.0.address", "pool.models.my-model.capability", "routes.auto"]
)
def test_entries_of_lists_and_names_of_the_users_own_are_steps(path: str) -> None:
    assert explained(path).startswith(path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("observe.stale", 'observe has no key "stale"; do you mean'),
        ("observe.stale_ms.x", 'stale_ms has no key "x"; it is a value'),
        ("", 'the configuration has no key ""; it has listen'),
        ("policy.rtt_weight", "its parameters are those of the policy that it names; see docs/policies.md"),
        ("pool.endpoints[0]..x", "has no key"),
    ],
)
def test_an_unknown_key_is_refused_with_what_there_is(path: str, says: str) -> None:
    with pytest.raises(UserError, match="has no key") as caught:
        explained(path)
    assert says in str(caught.value)
