"""Traces as plain tables: the form that users write themselves, and Azure's, which has no sessions and no prefixes.

A row is one request. With `at_s` it arrives at that time; with `think_s`, that long after its session's last answer.
Where a session's rows name no blocks, a prompt that is longer than the one before is assumed to repeat it, as in chats
and agents. `docs/replay.md` lists the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import Any, Final

from fairlead.core.facts import session_key
from fairlead.core.language import LANGUAGES
from fairlead.tools.replay.lines import Line
from fairlead.tools.replay.workload import Conversation, Runs, Turn, Workload, as_runs

DEFAULT_BLOCK_TOKENS: Final = 128
_IDS: Final = 1 << 24  # id range for one session's growing prompt, if the trace names no blocks
_NAMED_IDS: Final = 1 << 48  # ids named by traces are below, ours are above


class _Growing:
    """The blocks of a session that names none, and its conversation so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.prompt_tokens = 0

    def runs(self, prompt_tokens: int, block_tokens: int, fresh: Iterator[int]) -> Runs:
        if prompt_tokens < self.prompt_tokens:  # the conversation was compacted or restarted
            self.number = next(fresh)
        self.prompt_tokens = prompt_tokens
        blocks = prompt_tokens // block_tokens
        return ((_NAMED_IDS + self.number * _IDS, blocks),) if blocks else ()


def read_table(name: str, lines: Iterable[Line]) -> Workload:
    """Raises UserError, with the line, for an invalid row."""
    fresh = iter(range(1 << 30))
    growing: dict[str, _Growing] = {}
    open_: dict[str, int] = {}  # session to the index of the conversation that its next think_s continues
    starts_s: list[float] = []
    keys: list[bytes | None] = []
    turns: list[list[Turn]] = []
    block_tokens: int | None = None
    for line in lines:
        values = line.values
        stated = line.tokens("block_tokens") if values.get("block_tokens") else block_tokens or DEFAULT_BLOCK_TOKENS
        if block_tokens is not None and stated != block_tokens:
            line.refuse(f"block_tokens is {stated}, above it was {block_tokens}; a trace has one size of blocks")
        block_tokens = stated
        session = line.text("session")
        prompt_tokens = line.tokens("prompt_tokens")
        if values.get("blocks") is not None:
            runs = _named(line, prompt_tokens // block_tokens)
        elif session is not None:
            prompt = growing.get(session)
            if prompt is None:
                prompt = growing[session] = _Growing(next(fresh))
            runs = prompt.runs(prompt_tokens, block_tokens, fresh)
        else:
            runs = ()
        follows = values.get("think_s") not in (None, "")
        turn = Turn(
            prompt_tokens,
            line.tokens("output_tokens"),
            runs,
            think_ms=1e3 * line.number("think_s") if follows else 0.0,
            model=line.text("model") or "",
            language=_language(line),
        )
        if follows:
            if session is None or session not in open_:
                line.refuse("think_s, but its session has no earlier row with at_s to follow")
            turns[open_[session]].append(turn)
            continue
        at_s = _at_s(line)
        if starts_s and at_s < starts_s[-1]:
            line.refuse(f"at_s {at_s:g} is before the row above; sort the trace by time")
        if session is not None:
            open_[session] = len(turns)
        starts_s.append(at_s)
        keys.append(session_key(session.encode()) if session is not None else None)
        turns.append([turn])
    first_s = starts_s[0] if starts_s else 0.0
    conversations = [
        Conversation((at_s - first_s) * 1e3, tuple(own), key, sum(each.think_ms for each in own))
        for at_s, own, key in zip(starts_s, turns, keys, strict=True)
    ]
    notes = ("prompts of a session without blocks are taken to repeat the shorter one before",) if growing else ()
    return Workload(name, tuple(conversations), block_tokens or DEFAULT_BLOCK_TOKENS, notes)


def read_azure(name: str, lines: Iterable[Line]) -> Workload:
    """Azure's traces of 2023: shared prefixes are unknown, so prompts share nothing."""
    conversations: list[Conversation] = []
    first_s: float | None = None
    last_s = 0.0
    for line in lines:
        at_s = _timestamp_s(line)
        first_s = at_s if first_s is None else first_s
        if at_s - first_s < last_s:
            line.refuse("TIMESTAMP is before the row above; sort the trace by time")
        last_s = at_s - first_s
        turn = Turn(line.tokens("ContextTokens"), line.tokens("GeneratedTokens"))
        conversations.append(Conversation(last_s * 1e3, (turn,)))
    return Workload(name, tuple(conversations), DEFAULT_BLOCK_TOKENS, ("prompts share nothing, no sessions",))


def _at_s(line: Line) -> float:
    if line.values.get("at_s") in (None, ""):
        line.refuse("at_s is missing; write when it was sent, or think_s for a turn that follows an answer")
    return line.number("at_s")


def _timestamp_s(line: Line) -> float:
    text = line.text("TIMESTAMP") or ""
    try:
        return datetime.fromisoformat(text[:26]).timestamp()  # Python reads no more than microseconds
    except ValueError:
        line.refuse(f'TIMESTAMP: "{text}" is not a date and time, such as 2023-11-16 18:15:46.680590')


def _language(line: Line) -> str:
    language = line.text("language") or "en"
    if language not in LANGUAGES:
        line.refuse(f'language: "{language}" is not known; use {", ".join(LANGUAGES)}')
    return language


def _named(line: Line, whole: int) -> Runs:
    """The blocks that the row names: ids, or [first, count] for rows of successive ids; whole blocks only."""
    blocks: Any = line.values["blocks"]
    if not isinstance(blocks, list):
        line.refuse("blocks must be a list of block ids, or of [first id, count]")
    spelled = []
    for block in blocks:
        first, count = block if isinstance(block, list) and len(block) == 2 else (block, 1)
        is_whole = isinstance(first, int) and isinstance(count, int)
        if not (is_whole and 0 <= first < _NAMED_IDS and 0 < count <= _IDS):
            line.refuse(f"blocks: {block} is neither a block id below 2**48 nor [first id, count]")
        spelled.append(range(first, first + count))
        if sum(map(len, spelled)) > whole:
            break
    ids = list(chain.from_iterable(spelled))[:whole]
    if len(ids) < whole and len(ids) * 2 < whole:
        line.refuse(f"blocks names {len(ids)} blocks, but the prompt has {whole} whole ones")
    return as_runs(ids)
