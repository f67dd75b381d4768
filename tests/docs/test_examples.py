"""Files that pages show are files that are read."""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.config import Config, parse
from fairlead.discovery.file import read_endpoints
from fairlead.tools.plan.settings import load_settings

DOCS = Path(__file__).parents[2] / "docs"


def examples(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_configuration_is_accepted_and_shows_every_section_but_the_one_that_closes_the_door() -> None:
    (example,) = examples("configuration.md")
    shown = parse(example, "docs/configuration.md").model_fields_set
    assert shown == set(Config.model_fields) - {"clients"}


def test_the_file_of_engines_is_one_that_discovery_follows(tmp_path: Path) -> None:
    (example,) = (each for each in examples("discovery.md") if each.startswith("# engines.yaml"))
    path = tmp_path / "engines.yaml"
    path.write_text(example)
    assert len(read_endpoints(path)) == 6


def test_the_settings_of_a_cascade_are_ones_that_can_be_planned(tmp_path: Path) -> None:
    (example,) = (each for each in examples("cascade.md") if each.startswith("# cascade.yaml"))
    path = tmp_path / "cascade.yaml"
    path.write_text(example)
    assert len(load_settings(path).models) == 2
