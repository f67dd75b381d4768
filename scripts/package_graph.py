"""Print which package imports which, lowest first; end 1 where packages import each other in a ring.

    python scripts/package_graph.py            # src/fairlead; another package: give its folder

Every import counts, inside functions and under TYPE_CHECKING too: they tie packages together for whoever reads them.
Commands that `cli.py` finds by name are no imports. A package is a folder of the root or a module that lies there; the
packages of `tools` count one by one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, NamedTuple

_OPENED: Final = frozenset({"tools"})  # whose own packages are shown instead


class Import(NamedTuple):
    """One import of a module of the package by another; both by their full names."""

    module: str
    imported: str
    where: str  # file:line


def modules_in(root: Path) -> dict[str, Path]:
    """All modules below `root` by their full names."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path, modules: dict[str, Path]) -> Iterator[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (above, node.module) if part)
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            while name and name not in modules:  # a function, a class or a constant of the module before the dot
                name = name.rpartition(".")[0]
            if name:
                yield Import(module, name, f"{path}:{node.lineno}")


def package_of(module: str) -> str:
    """Without the root's name; empty for the root itself."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts and parts[0] in _OPENED else 1])


def graph_of(imports: Iterable[Import]) -> dict[str, set[str]]:
    """What each package imports of the others. The root's own `__init__` is nobody's part."""
    graph: dict[str, set[str]] = {}
    for each in imports:
        package, imported = package_of(each.module), package_of(each.imported)
        if package and imported and package != imported:
            graph.setdefault(package, set()).add(imported)
            graph.setdefault(imported, set())
    return graph


def ring_in(graph: dict[str, set[str]]) -> list[str]:
    """The packages of one ring, each importing the next and the last the first; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[:0:-1]  # each is imported by the next, and the first stands at both ends
    return []


def main(root: Path) -> int:
    modules = modules_in(root)
    if not modules:
        print(f"{root}: there are no modules; give the folder of a package, for example src/fairlead", file=sys.stderr)
        return 2
    imports = [found for module, path in modules.items() for found in imports_of(module, path, modules)]
    graph = graph_of(imports)
    ring = ring_in(graph)
    if ring:
        print(f"{len(ring)} packages import each other in a ring: {' -> '.join([*ring, ring[0]])}", file=sys.stderr)
        for package, imported in zip(ring, [*ring[1:], ring[0]], strict=True):
            for each in imports:
                if (package_of(each.module), package_of(each.imported)) == (package, imported):
                    print(f"  {each.where}: {each.module} imports {each.imported}", file=sys.stderr)
        return 1
    for package in TopologicalSorter(graph).static_order():
        print(f"{package}: {', '.join(sorted(graph[package])) or '-'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "src" / "fairlead"))
