"""The streams of one connection: those that live, and a short memory of those that ended."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Final

from fairlead.edge.http2.states import CLOSED, NEXT, OPEN, Ended, On, State

_REMEMBERED: Final = 512
_SKIPS: Final = 32


class Stream:
    """One request and its answer. `app` is for whoever serves it."""

    __slots__ = (
        "app", "body_left", "earned", "id", "pending", "pending_bytes", "receive_window", "send_window",
        "stalled_since_s", "state", "trailers",
    )  # fmt: skip

    def __init__(self, stream_id: int, receive_window: int, send_window: int) -> None:
        self.id = stream_id
        self.state: State = OPEN
        self.receive_window = receive_window  # that the peer may still send
        self.send_window = send_window  # below 0 after SETTINGS that made it smaller
        self.pending: deque[memoryview] | None = None  # DATA that waits for a window
        self.pending_bytes = 0
        self.trailers: bytes | None = None  # header block that ends the stream once `pending` has gone
        self.stalled_since_s: float | None = None  # `pending` has not moved since
        self.body_left: int | None = None  # of its content-length, if it has one
        self.earned = False  # a message has come: a reset is the peer's good right
        self.app: Any = None

    def move(self, on: On) -> bool:
        """Take the transition; False, and no change, where the table has none."""
        state = NEXT[self.state][on]
        if state is None:
            return False
        self.state = state
        return True


class Streams:
    """By number. `last_id` is the highest that the peer has opened."""

    def __init__(self) -> None:
        self.live: dict[int, Stream] = {}
        self.last_id = 0
        self._skipped: deque[tuple[int, int]] = deque(maxlen=_SKIPS)  # numbers that the peer passed over, from and to
        self._ended: OrderedDict[int, Ended] = OrderedDict()

    def open(self, stream_id: int) -> None:
        """The peer has opened `stream_id`, and can no more open those between."""
        if stream_id > self.last_id + 2:
            self._skipped.append((self.last_id, stream_id))
        self.last_id = stream_id

    def was_skipped(self, stream_id: int) -> bool:
        return any(low < stream_id < high for low, high in self._skipped)

    def close(self, stream: Stream, how: Ended) -> None:
        """Forget `stream`, and remember how it ended: for a while where that matters, otherwise not at all."""
        stream.state = CLOSED
        self.live.pop(stream.id, None)
        if how is not Ended.BY_PEER:
            self.remember(stream.id, how)

    def remember(self, stream_id: int, how: Ended) -> None:
        self._ended[stream_id] = how
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def how_ended(self, stream_id: int) -> Ended:
        """Of a stream that lived once. One that is not remembered counts as reset by the peer: as Envoy ends all."""
        return self._ended.get(stream_id, Ended.BY_PEER)
