"""A move of a session between two endpoints: what it is, and what the two can do for it. When to move: `migration`.

Three ways:
- copy: the KV is copied off the request path, and the session moves once the copy is confirmed;
- pull: the request goes to the target at once, which reads the KV from a store that both engines share;
- recompute: the request goes to the target at once, which computes the context again, if that still is sooner.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.core.endpoint import BY_PROXY, BY_ROOM, Endpoint
from fairlead.dialects import DIALECTS

How = Literal["copy", "pull", "recompute"]
StayReason = Literal["cooling", "small", "no_target", "too_expensive", "busy"]


class Move(msgspec.Struct, frozen=True, gc=False):
    """A session's context goes from `source` to `target`."""

    session: bytes
    source: str
    target: str
    how: How
    tokens: int  # of the request's prompt, cached at the source
    target_generation: int  # if it is another one when the copy ends, the target restarted and has lost its KV
    bound: str  # to which the session is bound: the source, unless that of another agent had moved before
    known: int = 0  # tokens of the prompt that the target holds already, as far as is known

    @property
    def redirects(self) -> bool:
        """Whether the request that caused it goes to the target already."""
        return self.how != "copy"


class Stay(msgspec.Struct, frozen=True, gc=False):
    """Why a session stays on an endpoint that is hot."""

    why: StayReason


def describe_move(migration: Move | Stay | None) -> str:
    """For people: how a session moves and where to, or why it stays on a hot endpoint; empty if neither."""
    if migration is None:
        return ""
    return (
        f"stays: {migration.why.replace('_', ' ')}"
        if isinstance(migration, Stay)
        else f"{migration.how} to {migration.target}"
    )


def pending_tokens(endpoint: Endpoint) -> int:
    """Waiting for prefill there, sent by any sidecar: for their turn, or for room in the KV cache.

    The router counts a prompt that it expects to be cached as done at once. While the engine reports waiting requests
    and has no room for one, these have not begun, and their context may be evicted before they do: they count in full.
    """
    load, waiting = endpoint.load, endpoint.report.waiting_requests
    if not waiting:
        return load.pending_prefill_tokens
    average = load.inflight_prompt_tokens // max(1, load.inflight_requests)
    held = waiting * average if must_wait_for_room(endpoint, average) else 0
    return max(load.pending_prefill_tokens, held)


def has_room(endpoint: Endpoint, tokens: int) -> bool:
    """Whether a prompt of `tokens` finds room in the KV cache next to those that run, as far as the engine reports."""
    report = endpoint.report
    return report.kv_capacity_tokens is None or report.kv_capacity_tokens * (1.0 - (report.kv_usage or 0.0)) >= tokens


def must_wait_for_room(endpoint: Endpoint, tokens: int) -> bool:
    """Whether a prompt of `tokens` must wait until others end. An idle engine's last report of its cache is old."""
    return endpoint.load.inflight_requests > 0 and not has_room(endpoint, tokens)


def may_take(target: Endpoint, source: Endpoint, tokens: int) -> bool:
    """Whether `target` can take a session of `source` with a context of `tokens`. Unknown values do not rule it out."""
    report, sources = target.report, source.report
    return (
        target is not source
        and target.model == source.model
        and target.health.healthy
        and has_room(target, tokens)
        and (target.max_model_len is None or target.max_model_len >= tokens)
        and _alike(report.kv_block_tokens, sources.kv_block_tokens)
        and _alike(report.kv_dtype, sources.kv_dtype)
    )


def _alike(one: object, other: object) -> bool:
    return one is None or other is None or one == other


def way_between(source: Endpoint, target: Endpoint) -> How:
    """The best that both engines can do."""
    if not source.spec.kv_connector or source.spec.kv_connector != target.spec.kv_connector:
        return "recompute"
    if source.spec.kv_connector == "shared":
        return "pull"
    if source.spec.kv_connector in (BY_PROXY, BY_ROOM):
        return "recompute"
    safe = all(DIALECTS[e.spec.engine].transfers_safely(e.identity.version) for e in (source, target))
    return "copy" if safe else "recompute"


def recompute_is_faster(tokens: int, source: Endpoint, held: int, target: Endpoint, known: int) -> bool:
    """Whether the first token comes sooner from `target`, which computes the context again."""
    stays_ms = source.rtt_ms + _pending_ms(source) + source.speed.prefill_ms(tokens, held)
    moves_ms = target.rtt_ms + _pending_ms(target) + target.speed.prefill_ms(tokens, known)
    return moves_ms < stays_ms


def _pending_ms(endpoint: Endpoint) -> float:
    """Of prefill that waits there, longer where some of it must wait for room: see `pending_tokens`."""
    held_back = pending_tokens(endpoint) - endpoint.load.pending_prefill_tokens
    return endpoint.speed.pending_ms(endpoint.load) + endpoint.speed.prefill_ms_per_token * held_back
