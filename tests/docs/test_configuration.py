"""docs/configuration.md: what it shows is what is read."""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.config import Config, parse

PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text(encoding="utf-8")


def test_the_example_is_accepted_and_shows_every_section_but_the_one_that_closes_the_door() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    shown = parse(example, "docs/configuration.md").model_fields_set
    assert shown == set(Config.model_fields) - {"clients"}
