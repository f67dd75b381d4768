"""Load: what is in flight at one endpoint. Values of it add up; the ledger counts in it, peers report it."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
_Product = Annotated[int, msgspec.Meta(ge=0, le=10**18)]


class Load(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What one or several sidecars have in flight at one endpoint. An array on the wire, so the order is its format."""

    inflight_requests: _Count = 0
    inflight_prompt_tokens: _Count = 0
    pending_prefill_tokens: _Count = 0  # not cached, and no first token seen yet
    decoding_requests: _Count = 0  # past their first token
    pending_attended_tokens: _Product = 0  # before those that are pending: see `core.prefill_work`
    awaited_requests: _Count = 0  # of those in flight, the ones whose prompt another endpoint still computes

    @property
    def present_requests(self) -> int:
        """Those that the engine has by now, and so may delay."""
        return self.inflight_requests - self.awaited_requests

    def pending_work_tokens(self, growth: float) -> float:
        """What waits for prefill, in tokens at the beginning of a prompt."""
        pending = self.pending_prefill_tokens
        return pending + growth * self.pending_attended_tokens if growth else pending

    def plus(self, other: Load) -> Load:
        return Load(
            self.inflight_requests + other.inflight_requests,
            self.inflight_prompt_tokens + other.inflight_prompt_tokens,
            self.pending_prefill_tokens + other.pending_prefill_tokens,
            self.decoding_requests + other.decoding_requests,
            self.pending_attended_tokens + other.pending_attended_tokens,
            self.awaited_requests + other.awaited_requests,
        )

    def minus(self, other: Load) -> Load:
        return Load(
            self.inflight_requests - other.inflight_requests,
            self.inflight_prompt_tokens - other.inflight_prompt_tokens,
            self.pending_prefill_tokens - other.pending_prefill_tokens,
            self.decoding_requests - other.decoding_requests,
            self.pending_attended_tokens - other.pending_attended_tokens,
            self.awaited_requests - other.awaited_requests,
        )
