"""Which task a request is of, and whose table then counts."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.core.task_rules import NO_TASKS, TaskRules
from tests.core.world import World, always, request

RULES = TaskRules(frozenset({"code", "agent"}), {"auto-code": "code"}, "agent")


@pytest.mark.parametrize(
    ("named", "route", "has_tools", "task"),
    [
        (b"code", "auto", True, "code"),
        (b" agent ", "auto-code", False, "agent"),
        (None, "auto-code", True, "code"),
        (None, "auto", True, "agent"),
        (None, "auto", False, ""),
        (b"unheard-of", "auto-code", False, "code"),
        (b"\xff" * 10_000, "auto", False, ""),
    ],
)
def test_a_client_names_a_known_task_else_its_route_else_its_tools(
    named: bytes | None, route: str, has_tools: bool, task: str
) -> None:
    assert RULES.task_of(named, route, has_tools=has_tools) == task


def test_without_files_there_is_no_task() -> None:
    assert NO_TASKS.task_of(b"code", "auto", has_tools=True) == ""


@pytest.mark.parametrize("endpoints", [1, 12])
@pytest.mark.parametrize(("task", "model"), [("", "writer"), ("code", "coder"), ("other", "writer")])
def test_the_model_that_is_right_in_a_task_gets_its_requests(task: str, model: str, endpoints: int) -> None:
    """With few endpoints, and with so many that prices are kept in a table."""
    world = World()
    for number in range(endpoints):
        for name, right, of_code in (("writer", 0.9, 0.1), ("coder", 0.2, 0.9)):
            capability = always(right)
            capability = type(capability)(capability.table, tasks={"code": always(of_code)})
            world.endpoint(f"{name}{number}:1", name, capability=capability)
    asked = msgspec.structs.replace(request(), task=task)
    in_flight = world.router.admit(asked)
    assert in_flight.decision.model == model  # type: ignore[union-attr]
