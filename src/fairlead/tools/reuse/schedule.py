"""The order in which to send a batch of contexts, so that each finds its prefix before it is evicted.

Source: ContextPilot, algorithm 5. Contexts whose paths begin alike follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence


def schedule(paths: Sequence[tuple[int, ...]]) -> list[int]:
    """Positions of `paths` (of `clustering.TreePosition`) in the order of execution: the largest group first.

    A group is of one child of the root; in it longer paths come first, and similar ones next to each other.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, path in enumerate(paths):
        groups.setdefault(path[:1], []).append(position)
    for group in groups.values():
        group.sort(key=lambda position: (-len(paths[position]), paths[position]))
    return [position for group in sorted(groups.values(), key=len, reverse=True) for position in group]
