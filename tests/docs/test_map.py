"""CONTRIBUTING.md's map of the house names every package and module at its top, and nothing else."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/fairlead"
UNNAMED = {"__init__", "__main__", "py"}


def _mapped() -> tuple[set[str], set[str]]:
    """The names of what serves and of what studies, as the map gives them."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    serves, studies = page.split("```\nsrc/fairlead/ ", 1)[1].split("src/fairlead/tools/ ", 1)
    inside = [re.split(r"\s{3,}", line.strip())[0] for line in serves.splitlines()[1:]]
    return {name.rstrip("/") for line in inside for name in line.split()}, set(
        re.findall(r"\w+", studies.split(":", 1)[1].splitlines()[0])
    )


def test_the_map_names_every_room_that_serves_and_no_other() -> None:
    there = {entry.stem for entry in PACKAGE.iterdir() if entry.suffix in ("", ".py")} - UNNAMED - {"__pycache__"}
    assert _mapped()[0] == there - {"tools"}


def test_the_map_names_every_study() -> None:
    there = {entry.name for entry in (PACKAGE / "tools").iterdir() if entry.is_dir()} - {"__pycache__"}
    assert there - {"commands"} <= _mapped()[1]
