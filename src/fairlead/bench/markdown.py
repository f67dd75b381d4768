"""Pieces of Markdown that reports share: a table, and the facts without which numbers mean nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.bench.machine import Machine


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def machine_facts(command: str, seed: int, machine: Machine, load_average_after: float) -> str:
    """How, when and where it ran, as a list."""
    facts = (
        ("Command", f"`{command}`"),
        ("Seed", seed),
        ("Date", machine.date),
        ("Commit", machine.commit),
        ("Machine", f"{machine.cpu}, {machine.cores} cores, {machine.kernel}"),
        ("Software", f"Python {machine.python}, Envoy {machine.envoy}"),
        ("Load average before and after", f"{machine.load_average:.2f}, {load_average_after:.2f}"),
    )
    return "\n".join(f"- {name}: {value}" for name, value in facts)
