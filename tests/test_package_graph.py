"""The script that prints which package imports which."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def printed(*arguments: object) -> tuple[int, str, str]:
    command = [sys.executable, str(ROOT / "scripts" / "package_graph.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package `house` with rooms `cellar`, `hall` and `tools.bench`, none of which imports another."""
    for folder in ("cellar", "hall", "tools/bench"):
        (tmp_path / "house" / folder).mkdir(parents=True)
        (tmp_path / "house" / folder / "__init__.py").touch()
    (tmp_path / "house" / "__init__.py").write_text("version = '1'\n")
    (tmp_path / "house" / "tools" / "__init__.py").touch()
    (tmp_path / "house" / "cellar" / "wine.py").write_text("from house import version\n")
    return tmp_path / "house"


def test_our_packages_do_not_import_each_other_in_a_ring() -> None:
    code, out, err = printed()

    assert (code, err) == (0, "")
    assert "\nserving: access, addresses, " in out


def test_a_package_stands_behind_all_that_it_imports(house: Path) -> None:
    (house / "hall" / "door.py").write_text("import house.cellar.wine\n")
    (house / "tools" / "bench" / "run.py").write_text("from house.hall import door\n")

    assert printed(house) == (0, "cellar: -\nhall: cellar\ntools.bench: hall\n", "")


@pytest.mark.parametrize(
    "back",
    [
        "import house.hall",
        "from house.hall import door",
        "from house import hall",
        "from ..hall import door",
        "from .. import hall",
        "def late():\n    import house.hall.door",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.hall.door import Door",
    ],
)
def test_any_kind_of_import_back_ties_a_ring_and_is_named(house: Path, back: str) -> None:
    (house / "hall" / "door.py").write_text("from house.cellar import wine\n")
    (house / "cellar" / "wine.py").write_text(back + "\n")

    code, out, err = printed(house)

    assert (code, out) == (1, "")
    assert err.startswith("2 packages import each other in a ring: ")
    assert f"{house}/hall/door.py:1: house.hall.door imports house.cellar.wine" in err
    assert f"{house}/cellar/wine.py:{len(back.splitlines())}: house.cellar.wine imports house.hall" in err


def test_a_ring_over_three_packages_is_told_in_its_order(house: Path) -> None:
    (house / "hall" / "door.py").write_text("import house.cellar\n")
    (house / "cellar" / "wine.py").write_text("import house.tools.bench\n")
    (house / "tools" / "bench" / "run.py").write_text("import house.hall\n")

    code, _, err = printed(house)

    ring = err.splitlines()[0].rpartition(": ")[2].split(" -> ")
    assert code == 1
    assert ring[0] == ring[-1]
    steps = set(pairwise(ring))
    assert steps == {("hall", "cellar"), ("cellar", "tools.bench"), ("tools.bench", "hall")}


def test_a_folder_without_modules_is_wrong_use(tmp_path: Path) -> None:
    code, _, err = printed(tmp_path)

    assert code == 2
    assert "give the folder of a package, for example src/fairlead" in err
