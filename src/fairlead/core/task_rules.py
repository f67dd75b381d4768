"""Which task a request is of, as accuracy differs by task: a model may have a capability file for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TaskRules(NamedTuple):
    """What a client names wins over its route's task, and that over what the request looks like."""

    known: frozenset[str] = frozenset()  # tasks that any model has a file for
    routes: Mapping[str, str] = {}
    with_tools: str = ""  # of requests that bring tools

    def task_of(self, named: bytes | None, route: str, *, has_tools: bool) -> str:
        """Empty where none is known: then each model's own `capability` counts."""
        if not self.known:
            return ""
        if named is not None:
            task = named.decode("latin-1").strip()
            if task in self.known:
                return task
        return self.routes.get(route) or (self.with_tools if has_tools else "")


NO_TASKS = TaskRules()
