"""What a run records: its attempts as they end, and counts that no row shows."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.core.in_flight import InFlight
from fairlead.tools.replay.sidecar import Sidecar


class AttemptRecord(NamedTuple):
    """One attempt, ended: a row of the results. Times are simulated ms; -1 stands for no endpoint and no time."""

    conversation: int
    turn: int
    attempt: int  # from 1
    session: int  # a digest, 0 for none
    endpoint: int  # its index in the world
    model: str
    why: str  # reason of the decision; "refused" if no engine could take it
    prompt_tokens: int
    output_tokens: int
    expected_tokens: int  # prompt tokens that the router expected to be cached
    cached_tokens: int  # prompt tokens that were cached
    asked_ms: float  # when the first attempt was sent
    sent_ms: float
    first_token_ms: float  # from sent_ms
    total_ms: float  # from sent_ms
    right: bool


class RunCounts(msgspec.Struct):
    """Counts of a run that its rows do not show."""

    sent: int = 0
    refused: int = 0  # by every engine, or too long for the chosen one
    dropped: int = 0  # later turns of a conversation that a refusal ended
    preemptions: int = 0
    moves: int = 0  # of sessions off hot endpoints
    moves_back: int = 0  # back to the session's previous endpoint
    busy_ms: tuple[float, ...] = ()  # for each engine: time with a step under way


class Asked(msgspec.Struct, eq=False):
    """An attempt under way."""

    conversation: int
    turn: int
    attempt: int
    attempted: tuple[str, ...]
    asked_ms: float
    sent_ms: float
    sidecar: Sidecar
    in_flight: InFlight
    endpoint: int
    half_rtt_ms: float
    prefix: tuple[int, ...]
    observed: bool = False
    handed_over: bool = False  # to an engine that only decodes, after its first token
    pinned: tuple[int, int] | None = None  # its KV waits to be fetched: blocks of it, at the engine of that place
    first_token_ms: float = 0.0
    cached_tokens: int = 0
