"""The contracts of import-linter break where they should: tried with imports that are not there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import api
from importlinter.contracts.layers import LayersContract

ROOT = Path(__file__).parents[1]
CONFIGURATION = api.read_configuration(str(ROOT / "pyproject.toml"))
OPTIONS: dict[str, Any] = next(each for each in CONFIGURATION["contracts_options"] if each["type"] == "layers")
LAYERS = [[name.strip() for name in layer.split("|")] for layer in OPTIONS["layers"]]  # the highest first
SERVING = [f"fairlead.{name}" for layer in LAYERS[1:] for name in layer]


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("fairlead", cache_dir=None)


def is_kept(imports: grimp.ImportGraph) -> bool:
    options = {key: value for key, value in OPTIONS.items() if key not in ("type", "name")}
    session = CONFIGURATION["session_options"]
    contract = LayersContract(name=OPTIONS["name"], session_options=session, contract_options=options)
    return contract.check(graph=imports, verbose=False).kept


def with_import(imports: grimp.ImportGraph, importer: str, imported: str) -> grimp.ImportGraph:
    changed = deepcopy(imports)
    changed.add_import(importer=importer, imported=imported)
    return changed


def upwards() -> Iterator[tuple[str, str]]:
    """Each package of what serves, and one of the layer above it."""
    for higher, lower in pairwise(LAYERS[1:]):
        for name in lower:
            yield f"fairlead.{name}", f"fairlead.{higher[0]}"


def test_the_layers_hold(imports: grimp.ImportGraph) -> None:
    assert LAYERS[0] == ["tools"]
    assert is_kept(imports)


@pytest.mark.parametrize("package", SERVING)
def test_nothing_that_serves_may_import_the_tools(imports: grimp.ImportGraph, package: str) -> None:
    assert not is_kept(with_import(imports, package, "fairlead.tools.study"))


@pytest.mark.parametrize(("lower", "higher"), list(upwards()))
def test_no_layer_may_import_the_one_above_it(imports: grimp.ImportGraph, lower: str, higher: str) -> None:
    assert not is_kept(with_import(imports, lower, higher))


@pytest.mark.parametrize(("one", "other"), [pair for layer in LAYERS for pair in permutations(layer, 2)])
def test_packages_of_one_layer_may_not_import_each_other(imports: grimp.ImportGraph, one: str, other: str) -> None:
    assert not is_kept(with_import(imports, f"fairlead.{one}", f"fairlead.{other}"))


def test_the_documented_layers_are_the_checked_ones() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| layer | what it is |\n|---|---|\n")
    rows = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()]
    assert [sorted(re.findall(r"`(\w+)`", row)) for row in rows] == [sorted(layer) for layer in LAYERS]


def test_a_package_that_stands_in_no_layer_is_an_error(imports: grimp.ImportGraph) -> None:
    changed = deepcopy(imports)
    changed.add_module("fairlead.newcomer")

    assert not is_kept(changed)


def test_lint_imports_names_the_import_that_breaks_a_contract(tmp_path: Path) -> None:
    """As `make lint` runs it, on a copy of the sources where the lowest package imports the tools."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "fairlead" / "errors.py").open("a", encoding="utf-8") as module:
        module.write("\nfrom fairlead.tools import study as study\n")
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"

    done = subprocess.run(
        [sys.executable, "-c", program, "--no-logo", "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stdout + done.stderr
    assert "fairlead.errors -> fairlead.tools.study" in done.stdout
