"""Keys that are added to a JSON object."""

from __future__ import annotations

import json

import pytest

from fairlead.api.edits import addition
from fairlead.api.spans import spliced

NEW = b'"cache_salt":"salt"'


@pytest.mark.parametrize("body", ["{}", " { \n} ", '{"a":1}', '{"a": {"b": "}"}} \n', '{"a":"{"\n}', '{"a":{}}'])
def test_it_is_added_to_an_object(body: str) -> None:
    written = body.encode()
    change = addition(NEW, written[-8:], len(written)) or addition(NEW, written, len(written))
    assert change is not None
    assert json.loads(spliced(written, [change])) == json.loads(body) | {"cache_salt": "salt"}


def test_an_ending_without_the_objects_own_is_not_enough() -> None:
    assert addition(NEW, b"   ", 100) is None
    assert addition(NEW, b" } ", 100) is None  # a key may be before it, or nothing
