"""Mooncake's open-loop traces: a time, lengths, and one id for each 512-token block of the prompt.

Times are quantised to some seconds: requests of one quantum are spread evenly at random over it, in their order. There
is no session column: a request belongs to the session that last used its longest matching prefix, ignoring blocks that
more than a twentieth of the requests share, such as a system prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from random import Random
from typing import Final

from fairlead.core.facts import session_key
from fairlead.tools.replay.lines import Line
from fairlead.tools.replay.workload import Conversation, Turn, Workload, as_runs

BLOCK_TOKENS: Final = 512
_COMMON_SHARE: Final = 0.05


def read_mooncake(name: str, lines: Iterable[Line], seed: int) -> Workload:
    """`seed` draws the times inside each quantum."""
    times_ms: list[float] = []
    turns: list[Turn] = []
    chains: list[list[int]] = []
    for line in lines:
        time_ms = line.number("timestamp")
        if times_ms and time_ms < times_ms[-1]:
            line.refuse(f"timestamp {time_ms:g} is before the line above; sort the trace by time")
        prompt_tokens = line.tokens("input_length")
        whole = _ids(line)[: prompt_tokens // BLOCK_TOKENS]
        times_ms.append(time_ms)
        chains.append(whole)
        turns.append(Turn(prompt_tokens, line.tokens("output_length"), as_runs(whole)))
    starts = _spread(times_ms, Random(seed))
    sessions = _sessions(chains)
    return Workload(
        name=name,
        conversations=tuple(
            Conversation(start_ms, (turn,), session_key(b"%d" % session))
            for start_ms, turn, session in zip(starts, turns, sessions, strict=True)
        ),
        block_tokens=BLOCK_TOKENS,
        notes=(
            "sessions are inferred from the longest matching prefix",
            "times inside a quantum of the recording are drawn by the seed",
        ),
    )


def _ids(line: Line) -> list[int]:
    ids = line.values.get("hash_ids")
    if not isinstance(ids, list) or not all(isinstance(each, int) and 0 <= each < 1 << 62 for each in ids):
        line.refuse("hash_ids must be a list of whole numbers, one a block")
    return ids


def _spread(times_ms: Sequence[float], rng: Random) -> list[float]:
    """Times of one quantum drawn between it and the next one; the last quantum is as long as the one before."""
    quanta = [(time_ms, len(list(group))) for time_ms, group in groupby(times_ms)]
    spread: list[float] = []
    width_ms = 0.0
    for index, (time_ms, count) in enumerate(quanta):
        if index + 1 < len(quanta):
            width_ms = quanta[index + 1][0] - time_ms
        spread += sorted(time_ms + width_ms * rng.random() for _ in range(count))
    return spread


def _sessions(chains: Sequence[Sequence[int]]) -> Iterator[int]:
    """A session number for each request."""
    uses = Counter(block for blocks in chains for block in blocks)
    most = _COMMON_SHARE * len(chains)
    owners: dict[int, int] = {}
    sessions = 0
    for blocks in chains:
        own = [block for block in blocks if uses[block] <= most]
        session = next((owners[block] for block in reversed(own) if block in owners), None)
        if session is None:
            session = sessions
            sessions += 1
        owners.update(dict.fromkeys(own, session))
        yield session
