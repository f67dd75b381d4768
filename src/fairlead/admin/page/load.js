// The load of an endpoint, with that of sidecars that share a store with this one, as decisions count it.

export const inflight = (e) => e.inflight_requests + e.peers.inflight_requests;
export const pending = (e) => e.pending_prefill_tokens + e.peers.pending_prefill_tokens;
export const waitMs = (e) => e.pending_prefill_ms;
