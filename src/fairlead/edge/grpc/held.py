"""How many bytes of unfinished messages are held: of one connection, and of the server."""

from __future__ import annotations


class UnfinishedBytes:
    """A count with a limit; what counts here counts in `parent` too."""

    def __init__(self, limit_bytes: int, parent: UnfinishedBytes | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._parent = parent

    def take(self, count: int) -> bool:
        """False, and nothing taken, beyond the limit."""
        if self.bytes + count > self.limit_bytes:
            return False
        if self._parent is not None and not self._parent.take(count):
            return False
        self.bytes += count
        return True

    def give(self, count: int) -> None:
        self.bytes -= count
        if self._parent is not None:
            self._parent.give(count)
