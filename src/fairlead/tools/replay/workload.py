"""The common form of all traces: conversations that start at a time and go on turn by turn.

An open-loop request is a conversation of one turn. In a closed loop the next turn comes when the answer of the last
one has ended and its think time has passed, so a slow pool is asked later. Block ids stand for `block_tokens` tokens
and all before them; they are kept as runs and spelled out only when a request is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

Runs = tuple[tuple[int, int], ...]  # (first block id, how many in a row)


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One request. `runs` names the whole blocks of its prompt; none: it shares nothing with any other."""

    prompt_tokens: int
    output_tokens: int
    runs: Runs = ()
    think_ms: float = 0.0  # between the end of the last answer and this request
    model: str = ""  # requested; empty: the world's default
    language: str = "en"

    def blocks(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(range(first, first + count) for first, count in self.runs))


class Conversation(msgspec.Struct, frozen=True, gc=False):
    """Turns that wait for each other. Several conversations may belong to one session."""

    start_ms: float
    turns: tuple[Turn, ...]
    session: bytes | None = None  # the router's key, see `core.facts.session_key`
    recorded_ms: float = 0.0  # from its start to its last request, as it was recorded


class Workload(msgspec.Struct, frozen=True):
    """Conversations in order of their start, and what was done to the recording to get them."""

    name: str
    conversations: tuple[Conversation, ...]
    block_tokens: int
    notes: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        return sum(len(conversation.turns) for conversation in self.conversations)

    @property
    def closed_loop(self) -> bool:
        return any(len(conversation.turns) > 1 for conversation in self.conversations)

    @property
    def span_ms(self) -> float:
        """From the first to the last request, as recorded."""
        first_ms = self.conversations[0].start_ms
        return max(each.start_ms + each.recorded_ms for each in self.conversations) - first_ms

    def faster(self, factor: float) -> Workload:
        """Conversations start `factor` times as often. Within a conversation, the pace stays the same."""
        return self._with(
            [msgspec.structs.replace(each, start_ms=each.start_ms / factor) for each in self.conversations],
            f"starts {factor:.3g} times as often as recorded",
        )

    def between(self, from_s: float, to_s: float) -> Workload:
        """The conversations that start in this part of the recording, from time 0 on; there may be none."""
        kept = [each for each in self.conversations if from_s * 1e3 <= each.start_ms < to_s * 1e3]
        moved = [msgspec.structs.replace(each, start_ms=each.start_ms - from_s * 1e3) for each in kept]
        return self._with(moved, f"starts from {from_s:g} s to {to_s:g} s only")

    def _with(self, conversations: Sequence[Conversation], note: str) -> Workload:
        return msgspec.structs.replace(self, conversations=tuple(conversations), notes=(*self.notes, note))


def as_runs(blocks: Iterable[int]) -> Runs:
    """Block ids, with each row of successive ones as one run."""
    runs: list[tuple[int, int]] = []
    first = following = 0
    for block in blocks:
        if block != following or first == following:
            if first != following:
                runs.append((first, following - first))
            first = block
        following = block + 1
    if first != following:
        runs.append((first, following - first))
    return tuple(runs)


def cut_runs(runs: Sequence[tuple[int, int]], blocks: int, offset: int = 0) -> Runs:
    """The first `blocks` of `runs`, with `offset` added to every id."""
    kept: list[tuple[int, int]] = []
    for first, count in runs:
        if blocks <= 0:
            break
        kept.append((first + offset, min(count, blocks)))
        blocks -= count
    return tuple(kept)
