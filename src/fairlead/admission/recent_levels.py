"""Which levels have had a request lately: a level gives way to those above it only while there are any."""

from __future__ import annotations

from typing import Final

_LATELY_S: Final = 60.0


class RecentLevels:
    """When each level of a group last had a request. Operators name levels, clients cannot add any."""

    __slots__ = ("_came_s",)

    def __init__(self) -> None:
        self._came_s: dict[str, dict[int, float]] = {}

    def came(self, group: str, level: int, now_s: float) -> None:
        levels = self._came_s.get(group)
        if levels is None:
            levels = self._came_s[group] = {}
        levels[level] = now_s

    def has_above(self, group: str, level: int, now_s: float) -> bool:
        """Whether a request of a higher level came within the last minute."""
        came_s = self._came_s.get(group)
        return came_s is not None and any(
            above > level and now_s - last_s < _LATELY_S for above, last_s in came_s.items()
        )
