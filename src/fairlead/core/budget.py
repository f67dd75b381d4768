"""How many answers may be observed in full without slowing the request path: a rate that all engines share.

Envoy hands over each part of an observed stream as a message of its own, and nothing ends that before the stream ends.
So messages are bounded too: what a stream usually has is set aside as its observation begins.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

BURST_S: Final = 2.0
_FIRST_GUESS: Final = 100.0  # messages of a stream
_NEWEST: Final = 0.2  # weight of one stream in what streams usually have
_REMEMBERED: Final = 32  # answers of an engine on average, then all counts are halved


class ObservationBudget:
    """Two token buckets. The rates may be changed at any time; where one is 0, nothing is observed.

    While the buckets are more than half full everyone is served; below that, only engines of which no more was seen
    than of others on average. So a busy engine's long streams do not take what is needed to know the others.
    """

    __slots__ = ("_answers", "_filled_s", "_messages", "_seen", "_usual", "answers_per_second", "messages_per_second")

    def __init__(self, answers_per_second: float, messages_per_second: float) -> None:
        self.answers_per_second = answers_per_second
        self.messages_per_second = messages_per_second
        self._answers = self._messages = 0.0
        self._filled_s: float | None = None
        self._seen: dict[str, float] = {}  # answers of each engine; old ones count less
        self._usual = _FIRST_GUESS

    def open(self, address: str, now_s: float) -> bool:
        """Whether one more answer, of the engine at `address`, may be observed. Then `ended` must follow."""
        self._fill(now_s)
        seen = self._seen
        mine = seen.setdefault(address, 0.0)  # whoever asks has a share from then on
        if self._answers < 1.0 or self._messages <= 0.0:
            return False
        total = sum(seen.values())
        scarce = self._answers < self._most(self.answers_per_second) / 2 or (
            self._messages < self._most(self.messages_per_second) / 2
        )
        if scarce and mine * len(seen) > total:
            return False
        if total > _REMEMBERED * len(seen):
            for each in seen:
                seen[each] /= 2
        seen[address] += 1.0
        self._answers -= 1.0
        self._messages -= self._usual
        return True

    def ended(self, messages: int, *, streamed: bool) -> None:
        """An observed answer ended, or its client left, after so many messages."""
        self._messages += self._usual - messages
        if streamed:
            self._usual += _NEWEST * (messages - self._usual)

    def forget_all_but(self, addresses: Collection[str]) -> None:
        """Other engines left the pool."""
        self._seen = {address: seen for address, seen in self._seen.items() if address in addresses}

    def _fill(self, now_s: float) -> None:
        passed_s = BURST_S if self._filled_s is None else max(0.0, now_s - self._filled_s)
        self._filled_s = now_s
        answers, messages = self.answers_per_second, self.messages_per_second
        self._answers = min(self._answers + passed_s * answers, self._most(answers))
        self._messages = min(self._messages + passed_s * messages, self._most(messages))

    @staticmethod
    def _most(per_second: float) -> float:
        """The capacity of a bucket: at least one, or a low rate would never reach it."""
        return max(1.0, per_second * BURST_S) if per_second else 0.0
