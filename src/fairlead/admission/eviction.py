"""Answers that are being streamed, and which of them ends so that a request of a higher level may begin.

One at a time for each group of models: what it frees is seen when its stream has ended, and only then is the next
chosen. The lowest level goes first, and there the newest, which has cost the least.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

PATIENCE_S: Final = 0.5  # that a request has waited, before another one ends for it


class Running:
    """One streamed answer. Compared by identity."""

    __slots__ = ("abort", "address", "group", "level")

    def __init__(self, group: str, level: int, address: str, abort: Callable[[], None]) -> None:
        self.group = group
        self.level = level
        self.address = address
        self.abort = abort


class Evictions:
    """`add`, then `remove` when its stream has ended, whyever."""

    def __init__(self) -> None:
        self._running: dict[str, dict[int, dict[Running, None]]] = {}  # by group and level, oldest first
        self._ending: dict[str, Running] = {}  # chosen, and not yet gone

    def add(self, running: Running) -> None:
        self._running.setdefault(running.group, {}).setdefault(running.level, {})[running] = None

    def remove(self, running: Running) -> None:
        levels = self._running.get(running.group, {})
        those = levels.get(running.level, {})
        those.pop(running, None)
        if not those:
            levels.pop(running.level, None)
        if not levels:
            self._running.pop(running.group, None)
        if self._ending.get(running.group) is running:
            del self._ending[running.group]

    def has_below(self, group: str, level: int) -> bool:
        """Whether there may be one to end."""
        return group not in self._ending and any(below < level for below in self._running.get(group, ()))

    def choose(self, group: str, level: int, addresses: Collection[str]) -> Running | None:
        """Which of those below `level` at these endpoints ends now."""
        if group in self._ending:
            return None
        levels = self._running.get(group, {})
        for below in sorted(each for each in levels if each < level):
            for running in reversed(levels[below]):
                if running.address in addresses:
                    self._ending[group] = running
                    return running
        return None
