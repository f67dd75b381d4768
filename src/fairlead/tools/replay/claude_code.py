"""Closed-loop agent sessions of `claude_code`: each turn names its 64-token blocks and how long the agent thought.

Sessions have no start times of their own: they start as a Poisson process. Each is cut before its first prompt above a
cap, because engines with a shorter context would have made the agent compact it. Resampling draws sessions with Zipf
weights, the one with the most input tokens first, and runs every draw as a further agent of that session: the same
session id, tools and system prompt, then separate blocks. That makes hot sessions; see `docs/replay.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import Final, NamedTuple

import msgspec

from fairlead.core.facts import session_key
from fairlead.tools.replay.lines import Line
from fairlead.tools.replay.workload import Conversation, Runs, Turn, Workload, cut_runs

BLOCK_TOKENS: Final = 64
_IDS: Final = 1 << 24  # range of one agent; the recording's ids are local to its session
MEAN_START_GAP_S: Final = 10.0  # between sessions, before any time scaling
_HEAD_TOKENS: Final = 12_000  # tools and system prompt, shared by the agents of a session: the recording's median


class Sampling(NamedTuple):
    """Which sessions run. `zipf` None: each once, in an order that the seed draws."""

    cap_tokens: int = 65_536
    think_cap_s: float = 60.0
    zipf: float | None = None
    draws: int | None = None  # with `zipf`: how many; None: as many as there are sessions


class _Request(NamedTuple):
    turn: Turn
    gap_ms: float  # from the request before it, as recorded


def read_claude_code(name: str, lines: Iterable[Line], sampling: Sampling, seed: int) -> Workload:
    """Raises UserError, with the line, for a row that is not of this kind."""
    sessions, cut, capped = _sessions(lines, sampling)
    names = sorted(sessions, key=lambda session: -sum(each.turn.prompt_tokens for each in sessions[session]))
    rng = Random(seed)
    if sampling.zipf is None:
        drawn = rng.sample(names, len(names))
    else:
        weights = [rank**-sampling.zipf for rank in range(1, len(names) + 1)]
        drawn = rng.choices(names, weights, k=sampling.draws or len(names))
    starts = accumulate(rng.expovariate(1 / (MEAN_START_GAP_S * 1e3)) for _ in drawn)
    numbers = {session: number for number, session in enumerate(names, start=1)}
    conversations = [
        _agent(session, sessions[session], start_ms, numbers[session] * _IDS, (len(names) + agent) * _IDS)
        for agent, (session, start_ms) in enumerate(zip(drawn, starts, strict=True), start=1)
    ]
    notes = [
        f"{cut:,} requests left out: each session is cut before its first prompt above {sampling.cap_tokens:,} tokens",
        f"{capped:,} think times cut to {sampling.think_cap_s:g} s",
        f"starts of sessions are drawn, {MEAN_START_GAP_S:g} s apart on average",
    ]
    if sampling.zipf is not None:
        notes.append(
            f"sessions drawn with Zipf weights (exponent {sampling.zipf:g}), each draw a further agent of its session"
        )
    return Workload(name, tuple(conversations), BLOCK_TOKENS, tuple(notes))


def _sessions(lines: Iterable[Line], sampling: Sampling) -> tuple[dict[str, list[_Request]], int, int]:
    """Requests by session, how many were cut, and how many think times were capped."""
    sessions: dict[str, list[_Request]] = {}
    ended: set[str] = set()
    last_s: dict[str, float] = {}
    cut = capped = 0
    for line in lines:
        session = line.text("session")
        if session is None:
            line.refuse("session is missing")
        at_s = line.number("t")
        if at_s < last_s.get(session, 0.0):
            line.refuse(f"t {at_s:g} is before the request above of the same session; sort each session by time")
        if "spawn" in line.values:  # marks the start of a sub-agent; not a request
            continue
        gap_ms = 1e3 * (at_s - last_s.get(session, at_s))
        last_s[session] = at_s
        prompt_tokens = line.tokens("in")
        if session in ended or prompt_tokens > sampling.cap_tokens:
            ended.add(session)
            cut += 1
            continue
        think_s = line.number("think") if line.values.get("think") is not None else 0.0
        capped += think_s > sampling.think_cap_s
        turn = Turn(
            prompt_tokens,
            max(1, int(line.number("out"))),  # an interrupted answer has none
            cut_runs(_runs(line), prompt_tokens // BLOCK_TOKENS),
            think_ms=1e3 * min(think_s, sampling.think_cap_s),
        )
        gap_ms -= 1e3 * max(0.0, think_s - sampling.think_cap_s)
        sessions.setdefault(session, []).append(_Request(turn, max(0.0, gap_ms)))
    return sessions, cut, capped


def _runs(line: Line) -> list[tuple[int, int]]:
    runs = line.values.get("h")
    if not isinstance(runs, list):
        line.refuse("h must be a list of [first block, count]")
    for run in runs:
        is_pair = isinstance(run, list) and len(run) == 2 and all(isinstance(each, int) for each in run)
        if not (is_pair and run[1] > 0 and 0 <= run[0] < _IDS - run[1]):
            line.refuse(f"h: {run} is not [first block, count]")
    return runs


def _agent(session: str, requests: Sequence[_Request], start_ms: float, shared: int, own: int) -> Conversation:
    """`session` run by one agent: the head that all its prompts begin with is the session's, the rest its own."""
    head = min(_common_blocks([each.turn.runs for each in requests]), _HEAD_TOKENS // BLOCK_TOKENS)
    turns = [msgspec.structs.replace(t, runs=_renumbered(t.runs, head, shared, own)) for t, _ in requests]
    return Conversation(
        start_ms,
        (msgspec.structs.replace(turns[0], think_ms=0.0), *turns[1:]),
        session_key(session.encode()),
        recorded_ms=sum(each.gap_ms for each in requests[1:]),
    )


def _common_blocks(all_runs: Sequence[Runs]) -> int:
    """The number of blocks in the common prefix: whole runs first, then what two differing runs share."""
    common = sum(count for _, count in all_runs[0])
    for runs in all_runs[1:]:
        same = 0
        for (first, count), (other, others) in zip(all_runs[0], runs, strict=False):
            if first != other:
                break
            same += min(count, others)
            if count != others:
                break
        common = min(common, same)
    return common


def _renumbered(runs: Runs, head: int, shared: int, own: int) -> Runs:
    """The first `head` blocks numbered from `shared`, the others from `own`."""
    kept = cut_runs(runs, head, shared)
    rest: list[tuple[int, int]] = []
    skipped = 0
    for first, count in runs:
        skip = min(count, head - skipped)
        skipped += skip
        if count > skip:
            rest.append((first + skip + own, count - skip))
    return kept + tuple(rest)
