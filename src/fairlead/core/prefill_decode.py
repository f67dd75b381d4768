"""Whether another endpoint computes a request's prompt, or the one that decodes it: the rule, in ms.

    alone = rtt(d) + wait(d) + prefill(d) + stall(d)                                             + decode(d)
    split = rtt(d) + rtt(p) + wait(p) + prefill(p) + stall(p) + transfer + what is left of wait(d) + decode(d) + step(d)

A decode is slowed by the prompts that are computed alongside it, as many as lately: it takes 1 / (1 - their share of
the engine's time) times as long. That is what an engine gains which computes none. What all gain by leaving it so, no
single request sees: see `core.division`.

Prefill is of the part of the prompt that the endpoint has not cached. It delays whatever is there, those that decode
and those that wait, but none whose prompt another endpoint still computes. An answer slows the others in its batch.
`stall` is the sum of these delays: a time that others lose counts as one's own. A split takes one step more, as the
prompt's last token is computed again where it is decoded. The cheaper way is chosen, among the endpoints that a policy
by cost ranks first. A pool without roles has nothing to choose from, and no request looks here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from fairlead.core.division import MOST_BUSY, Division
from fairlead.core.endpoint import BY_PROXY, BY_ROOM, Endpoint
from fairlead.dialects import DIALECTS

if TYPE_CHECKING:
    from fairlead.core.candidates import Candidate

TRANSFER_SETUP_MS: Final = 10.0  # for one more request, and for the transfer to start
_SHARED_STORE: Final = "shared"  # engines take KV from it by themselves
_LONGEST_WAIT_MS: Final = 7_500.0  # at the decode endpoint: half of the shortest time for which a prefill's KV is kept


class Hops(msgspec.Struct, frozen=True, gc=False):
    """Expected ms of one way, by cause. Without a `prefiller` the decode endpoint computes the prompt itself."""

    decoder: str
    prefiller: str
    rtt_ms: float
    wait_ms: float
    prefill_ms: float
    stall_ms: float  # that others lose, by the prefill and by one more answer
    transfer_ms: float
    decode_ms: float

    def total_ms(self) -> float:
        waits_ms = self.rtt_ms + self.wait_ms
        return waits_ms + self.prefill_ms + self.stall_ms + self.transfer_ms + self.decode_ms


class PrefillChoice(msgspec.Struct, frozen=True, gc=False):
    """Both ways of a request, of which the cheaper is taken; the second, where the endpoint cannot do without."""

    alone: Hops
    split: Hops
    prefiller_cached_tokens: int = 0  # of the prompt, at the prefiller
    prefiller_cached_blocks: int = 0
    must_split: bool = False
    else_alone: bool = False  # whoever is tried next does both halves: nothing of the first attempt binds it

    @property
    def is_split(self) -> bool:
        return self.must_split or self.split.total_ms() < self.alone.total_ms()

    @property
    def taken(self) -> Hops:
        return self.split if self.is_split else self.alone


Offer = tuple[float, int, Endpoint, float]
"""Of an endpoint that would compute a prompt for another one; what is less takes less.

The ms until it is computed, with what others lose meanwhile, and without what decoding would wait for; the endpoint's
place among those that were asked; the endpoint; the ms of the prefill alone.
"""


def prefilling_by_model(endpoints: Iterable[Endpoint]) -> Mapping[str, tuple[Endpoint, ...]]:
    """Who may compute prompts for others of its model: none unless some endpoint is said to do only one half."""
    endpoints = tuple(endpoints)
    split = {e.model for e in endpoints if e.spec.role != "both"}
    able = [e for e in endpoints if e.model in split and e.spec.role != "decode" and _connects(e)]
    return {model: tuple(e for e in able if e.model == model) for model in {e.model for e in able}}


def prefillers(
    among: Sequence[Endpoint], name: str | None, subset: Collection[str] | None, draining: Collection[str]
) -> list[Endpoint]:
    """Those of `among` that may compute a prompt now; `name` is the model, or an adapter of it, that is asked for.

    Where none of these is left, those without which nobody could answer, though they drain or warm in.
    """
    able = [
        e
        for e in among
        if (subset is None or e.address in subset)
        and (e.model == name or not e.identity.models or name in e.identity.models)
    ]
    healthy = [e for e in able if e.health.healthy and not e.hops.is_out and e.address not in draining]
    return healthy or [e for e in able if not e.spec.answers_alone and (e.health.healthy or e.health.only_warms_in)]


def may_pass_on(source: Endpoint, target: Endpoint) -> bool:
    """Whether the target can take the KV of a prompt that the source has computed, and survives it if that fails."""
    connector = source.spec.kv_connector
    if source is target or connector != target.spec.kv_connector:
        return False
    return connector in (BY_PROXY, BY_ROOM) or all(
        DIALECTS[e.spec.engine].transfers_safely(e.identity.version) for e in (source, target)
    )


def alone(
    at: Candidate, decoder: Endpoint, now_s: float, division: Division | None = None, transfer_ms_per_token: float = 0.0
) -> Hops:
    """`division` is that of the decoder's model as of now, if its engines may divide their work in other ways."""
    prefill_ms = at.prefill_ms_per_token * at.work_tokens
    busy_share, delayed = decoder.prefills.busy_share(now_s), float(decoder._load.present_requests)
    if division is not None:
        transfer_ms = TRANSFER_SETUP_MS + transfer_ms_per_token * at.uncached_tokens
        if division.pays(at.decode_ms_per_token * at.output_tokens, transfer_ms):
            busy_share = max(busy_share, division.busy_share)
        else:
            delayed = min(delayed, division.present_requests)
    return Hops(
        at.address,
        "",
        at.rtt_ms,
        at.prefill_ms_per_token * at.pending_work_tokens,
        prefill_ms,
        prefill_ms * delayed + _others_lose_ms(at, at.output_tokens),
        0.0,
        _decode_ms(at, busy_share, at.output_tokens),
    )


def offers(among: Iterable[Endpoint], tokens: int, cached_tokens: Mapping[str, int]) -> list[Offer]:
    """Who would compute a prompt of `tokens`, least first; `cached_tokens` by address."""
    found, cached_at = [], cached_tokens.get
    for position, e in enumerate(among):  # there may be a thousand
        load, speed = e._load, e._speed
        prefill_ms = speed.prefill_ms(tokens, cached_at(e.address, 0))
        own_ms = e._rtt_ms + speed.pending_ms(load) + prefill_ms * (1 + load.present_requests)
        found.append((own_ms, position, e, prefill_ms))
    found.sort()
    return found


def cheapest_split(
    at: Candidate,
    decoder: Endpoint,
    among: Iterable[Offer],
    lacking_tokens: int,
    transfer_ms_per_token: float,
    now_s: float,
) -> Hops | None:
    """By the best of `among`, least first, for a prompt that `at` decodes; None if no one can or its KV would not keep.

    `lacking_tokens` are those that `at` has not cached, which must be transferred.
    """
    queue_ms = at.prefill_ms_per_token * at.pending_work_tokens
    if queue_ms > _LONGEST_WAIT_MS and decoder.spec.answers_alone:
        return None
    transfer_ms = TRANSFER_SETUP_MS + transfer_ms_per_token * lacking_tokens
    best: Offer | None = None
    best_ms, left_ms = inf, 0.0
    for offer in among:
        own_ms, _, prefiller, prefill_ms = offer
        if own_ms >= best_ms:
            break
        ready_ms = own_ms - prefill_ms * prefiller._load.present_requests
        left = max(0.0, queue_ms - ready_ms - transfer_ms)
        if own_ms + left < best_ms and may_pass_on(prefiller, decoder):
            best, best_ms, left_ms = offer, own_ms + left, left
    if best is None:
        return None
    _, _, prefiller, prefill_ms = best
    load = prefiller._load
    return Hops(
        at.address,
        prefiller.address,
        at.rtt_ms + prefiller._rtt_ms,
        prefiller._speed.pending_ms(load) + left_ms,
        prefill_ms,
        prefill_ms * load.present_requests + _others_lose_ms(at, at.output_tokens + 1),
        transfer_ms,
        _decode_ms(at, decoder.prefills.busy_share(now_s), at.output_tokens + 1),
    )


def may_pay(at: Candidate) -> bool:
    """Whether computing the prompt elsewhere could save anything: it costs more here than a transfer takes to start."""
    prefill_ms = at.prefill_ms_per_token * at.work_tokens
    queue_ms = at.prefill_ms_per_token * at.pending_work_tokens
    return queue_ms + prefill_ms * (1 + at.inflight_requests) > TRANSFER_SETUP_MS


def _decode_ms(at: Candidate, busy_share: float, tokens: float) -> float:
    step_ms = at.decode_ms_per_token * (1 + at.batch_slowdown * at.inflight_requests)
    return step_ms * tokens / (1 - min(MOST_BUSY, busy_share))


def _others_lose_ms(at: Candidate, tokens: float) -> float:
    """As much as it loses by each of them, as in `policies.fairlead`."""
    return at.decode_ms_per_token * at.batch_slowdown * at.inflight_requests * tokens


def _connects(endpoint: Endpoint) -> bool:
    return endpoint.spec.kv_connector not in ("", _SHARED_STORE)
