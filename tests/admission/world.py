"""A queue of named requests: what enters, and in which order it leaves."""

from __future__ import annotations

from typing import Any

from fairlead.admission.limits import QueueRules
from fairlead.admission.queue import IsOpen, WaitQueue
from fairlead.admission.waiting import Lane, Verdict, Waiting

LANE = Lane("m", "m")


def always_open(_: Lane, __: int) -> bool:
    return True


def ignore(_: Verdict) -> float:
    return 0.0


class World:
    """`waits` puts a request into the queue; `leaves` lists the names of those that are given an endpoint."""

    def __init__(self, **rules: Any) -> None:
        self.queue = WaitQueue(QueueRules(**rules))
        self.names: dict[Waiting, str] = {}
        self.displaced: list[str] = []
        self.now_s = 0.0

    def waits(self, name: str, **fields: Any) -> Waiting | None:
        """None if it was refused."""
        lane = fields.pop("lane", LANE)
        waiting = Waiting(lane, ignore, arrived_s=self.now_s, **fields)
        self.names[waiting] = name
        displaced = self.queue.enter(waiting, self.now_s)
        if displaced is None:
            return None
        self.displaced += [self.names[each] for each in displaced]
        return waiting

    def leave(self, is_open: IsOpen = always_open) -> str | None:
        taken = self.queue.next("m", is_open, self.now_s)
        if taken is None:
            return None
        self.queue.charge(taken, taken.waiting.cost_ms, self.now_s)
        return self.names[taken.waiting]

    def leaves(self, most: int = 1000, is_open: IsOpen = always_open) -> list[str]:
        left: list[str] = []
        while len(left) < most and (name := self.leave(is_open)) is not None:
            left.append(name)
        return left
