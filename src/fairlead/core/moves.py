"""A move of a session between two endpoints: what it is, and what the two can do for it. When to move: `migration`.

Three ways:
- copy: the KV is copied beside the request path, and the session moves once the copy is confirmed;
- pull: the request goes to the target at once, which reads the KV from a store that both engines share;
- recompute: the request goes to the target at once, which computes the context again, if that is sooner all the same.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.core.pool import Endpoint

How = Literal["copy", "pull", "recompute"]
Why = Literal["cooling", "small", "no_target", "dear", "busy"]


class Move(msgspec.Struct, frozen=True, gc=False):
    """A session's context goes from `source` to `target`; the generations tell whether either restarted meanwhile."""

    session: bytes
    source: str
    target: str
    how: How
    tokens: int  # of the request's prompt, cached at the source
    source_generation: int
    target_generation: int
    bound: str  # where the session lives: at the source, unless that of another agent had moved before

    @property
    def redirects(self) -> bool:
        """Whether the request that caused it goes to the target already."""
        return self.how != "copy"


class Stay(msgspec.Struct, frozen=True, gc=False):
    """Why a session stays on a host that is hot."""

    why: Why


def told(migration: Move | Stay | None) -> str:
    """For people: how a session moves and where to, or why it stays on a hot host; empty if neither."""
    if migration is None:
        return ""
    return f"stays: {migration.why}" if isinstance(migration, Stay) else f"{migration.how} to {migration.target}"


def pending_tokens(endpoint: Endpoint) -> int:
    """Waiting for prefill there, sent by any sidecar: for their turn, or for room in the KV cache.

    The router takes a prompt that it believes cached for done at once. While the engine reports requests that wait and
    has no room for one, these have not begun, and by then their context may be evicted: they count whole.
    """
    sent = endpoint.pending_prefill_tokens + endpoint.others_pending_prefill_tokens
    waiting = endpoint.reported.waiting_requests
    if not waiting:
        return sent
    prompt_tokens = endpoint.inflight_prompt_tokens + endpoint.others_inflight_prompt_tokens
    mean = prompt_tokens // max(1, _requests(endpoint))
    return max(sent, waiting * mean) if is_crowded(endpoint, mean) else sent


def has_room(endpoint: Endpoint, tokens: int) -> bool:
    """Whether a prompt of `tokens` finds room in the KV cache beside those that run, as far as the engine tells."""
    said = endpoint.reported
    return said.kv_capacity_tokens is None or said.kv_capacity_tokens * (1.0 - (said.kv_usage or 0.0)) >= tokens


def is_crowded(endpoint: Endpoint, tokens: int) -> bool:
    """Whether a prompt of `tokens` must wait until others end. What an idle engine said of its cache last is old."""
    return _requests(endpoint) > 0 and not has_room(endpoint, tokens)


def _requests(endpoint: Endpoint) -> int:
    return endpoint.inflight_requests + endpoint.others_inflight_requests


def may_host(target: Endpoint, host: Endpoint, tokens: int) -> bool:
    """Whether `target` can take a session of `host` with a context of `tokens`. What is not known speaks for it."""
    said, hosts = target.reported, host.reported
    return (
        target is not host
        and target.model == host.model
        and target.healthy
        and has_room(target, tokens)
        and (target.max_model_len is None or target.max_model_len >= tokens)
        and _alike(said.kv_block_tokens, hosts.kv_block_tokens)
        and _alike(said.kv_dtype, hosts.kv_dtype)
    )


def _alike(one: object, other: object) -> bool:
    return one is None or other is None or one == other


def way_between(host: Endpoint, target: Endpoint) -> How:
    """The best that both engines can do."""
    if not host.kv_connector or host.kv_connector != target.kv_connector:
        return "recompute"
    if host.kv_connector == "shared":
        return "pull"
    safe = transfers_safely(host.identity.version) and transfers_safely(target.identity.version)
    return "copy" if safe else "recompute"


def transfers_safely(version: str | None) -> bool:
    """Whether a vLLM of this version survives a transfer that fails: up to 0.29 its request hangs and leaks blocks."""
    parts = (version or "").split(".")
    return len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() and (int(parts[0]), int(parts[1])) >= (0, 30)


def pays(tokens: int, host: Endpoint, held: int, target: Endpoint, known: int) -> bool:
    """Whether the first token comes sooner from `target`, which computes the context again."""
    stays_ms = host.rtt_ms + host.prefill_ms_per_token * (pending_tokens(host) + tokens - held)
    moves_ms = target.rtt_ms + target.prefill_ms_per_token * (pending_tokens(target) + tokens - known)
    return moves_ms < stays_ms
