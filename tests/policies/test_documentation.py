"""docs/policies.md names every policy, with the parameters and defaults that the code has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from fairlead.policies import build_policy, policy_names
from fairlead.policies.registry import Rule

PAGE: Final = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
ROWS: Final = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE, re.MULTILINE))


def test_every_policy_has_a_row_and_every_row_a_policy() -> None:
    assert sorted(ROWS) == list(policy_names())


@pytest.mark.parametrize("name", policy_names())
def test_the_row_has_the_parameters_and_defaults_of_the_code(name: str) -> None:
    rule = build_policy(name, {})
    assert isinstance(rule, Rule)
    declared = {field: str(getattr(rule, field)).lower() for field in rule.__struct_fields__}
    _, parameters, _ = ROWS[name].split(" | ")
    assert dict(re.findall(r"`(\w+): ([^`]+)`", parameters)) == declared
