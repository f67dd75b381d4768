"""Where the router believes things to be: endpoints in the pool, prompts in caches, sessions at their endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from fairlead.core.answered import Answered, AnsweredPrompts, Answers
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.migration import Planner, Rules
from fairlead.core.moves import Move
from fairlead.core.observation import Observation
from fairlead.core.policy import Credit, Decision
from fairlead.core.pool import Pool
from fairlead.core.prefix_index import HeldBefore, PrefixIndex
from fairlead.core.rendezvous import OtherRouters
from fairlead.core.retention import LEAST_TOKENS, Retention
from fairlead.core.sessions import SessionTable
from fairlead.core.suspects import Lost, Suspects, Treatment
from fairlead.core.transfers import TransferTimes

_COMPUTED_S: Final = 1.0

FlipRefused = Literal["target_restarted", "target_unhealthy", "session_gone"]


class Placement:
    """The pool may be replaced between two decisions."""

    def __init__(self, pool: Pool, index: PrefixIndex, sessions: SessionTable, rules: Rules) -> None:
        self.pool = pool
        self.index = index
        self.sessions = sessions
        self.planner = Planner(rules, sessions)
        self.answered = AnsweredPrompts()
        self.answered_requests = Answers()  # by `RequestFacts.cause`: what one has answered is no engine's death
        self.suspects = Suspects()
        self.transfers = TransferTimes()
        self.others = OtherRouters()
        self.retentions: dict[str, Retention] = {}  # by address, of engines that were seen to report cached tokens

    def forget_restarted(self, endpoints: Sequence[Endpoint]) -> None:
        """What engines had cached before they restarted is gone."""
        for endpoint in endpoints:
            if endpoint._generation != endpoint.indexed_generation:
                endpoint.indexed_generation = endpoint.generation
                self.index.forget(endpoint.address)
                self.retentions.pop(endpoint.address, None)  # it may have been started with another cache

    def affinity_target(self, request: RequestFacts, now_s: float) -> str | None:
        """Where the session is bound, unless that model has already answered this request wrongly."""
        if request.session is None:
            return None
        target = self.sessions.endpoint_of(request.session, now_s)
        if target is None or not request.attempted:
            return target
        endpoint = self.pool.by_address.get(target)
        return None if endpoint is None or (request.name or endpoint.model) in request.attempted else target

    def credit(
        self, request: RequestFacts, held: Mapping[str, int], cached_tokens: dict[str, int], now_s: float
    ) -> dict[str, Credit]:
        """Raise `cached_tokens` where an engine answered this very prompt, or this conversation's last one."""
        found: dict[str, Credit] = {}
        for turn in (request.last_turn, request.turn):
            known = None if turn is None else self.answered.get(turn.key)
            if turn is None or known is None or held.get(known.address, 0) < turn.blocks:
                continue
            endpoint = self.pool.by_address.get(known.address)
            if endpoint is None or not self.index.has_kept(known.address, known.used_s, now_s):
                continue
            if turn is request.turn:
                tokens = known.prompt_tokens or request.tokens
            else:
                before, after = request.tokens_around(turn)
                credit = Credit(known.prompt_tokens or before, known.reply_tokens or after - before)
                found[known.address] = credit
                tokens = credit.prompt_tokens + int(credit.reply_tokens * self.answered.reply_share(endpoint.model))
            cached_tokens[known.address] = min(tokens, request.tokens)
        return found

    def commit(self, request: RequestFacts, address: str, now_s: float, *, binds: bool = True) -> Sequence[HeldBefore]:
        """`request` goes to `address`: its prompt will be cached there; if it `binds`, its session is bound there.

        Returns what was held there of its prompt before. Of an endpoint that has left since nothing is kept: whoever
        comes to its address has none of it.
        """
        held: Sequence[HeldBefore] = ()
        if address not in self.pool.by_address:
            return held
        if request.prefix:
            held = self.index.insert(request.prefix, address, now_s, request.block_tokens)
        if binds and request.session is not None and self.sessions.address_of(request.session) != address:
            self.sessions.bind(request.session, address, now_s)
        return held

    def used(self, request: RequestFacts, endpoint: Endpoint, committed_s: float, now_s: float) -> float:
        """The answer to `request` has ended there. Until now its prompt was in use, so the engine evicts it last.

        Returns when it was last used.
        """
        address, index = endpoint.address, self.index
        if endpoint.generation != endpoint.indexed_generation or index.has_forgotten(address, committed_s):
            return committed_s
        if request.prefix:
            index.insert(request.prefix, address, now_s, request.block_tokens)
        return now_s

    def indexed_blocks(self, endpoint: Endpoint) -> int:
        """Blocks kept for it. The index forgets a restarted engine at the next decision, not at its restart."""
        return self.index.blocks(endpoint.address) if endpoint.generation == endpoint.indexed_generation else 0

    def roll_back(self, request: RequestFacts, address: str, cached_blocks: int, committed_s: float) -> None:
        """The prompt committed at `committed_s` was not computed at `address`, which had held `cached_blocks` of it."""
        if request.prefix:
            self.index.roll_back(request.prefix, address, cached_blocks, committed_s)

    def answer_ended(
        self, request: RequestFacts, address: str, committed_s: float, seen: Observation | None, *, is_whole: bool
    ) -> None:
        """The engine at `address` computed all of the prompt, and an answer, of which `seen` may say the lengths.

        Unless `is_whole`, that is only likely: `stream_lost` may follow.
        """
        known = (None, None) if seen is None or seen.several else (seen.prompt_tokens, seen.completion_tokens)
        answered = Answered(address, committed_s, *known)
        if request.cause:
            self.answered_requests.add(request.cause, answered)
            if is_whole:
                self.suspects.answered((request.model, request.cause), address)
        if request.turn is not None:
            self.answered.add(request.turn.key, answered)

    def learn(self, request: RequestFacts, decision: Decision, held: Sequence[HeldBefore], seen: Observation) -> None:
        """What an answer showed of the caches, where `held` was expected, and of the way of its KV."""
        target = self.pool.by_address.get(seen.address)
        if target is not None:
            self.transfers.answered(target, decision, seen)
        if seen.direct and not seen.several:
            self._learn_cached(request, decision, held, seen)

    def _learn_cached(
        self, request: RequestFacts, decision: Decision, held: Sequence[HeldBefore], seen: Observation
    ) -> None:
        """What the engine chosen by `decision` reports to have had in its cache, where `held` was expected.

        What is absent means none only where others were reported.
        """
        if not seen.prompt_tokens:
            return
        address, cached_tokens = decision.addresses[0], seen.cached_tokens
        retention = self.retentions.setdefault(address, Retention())
        if cached_tokens:
            retention.reports.add(seen.usage_form)
        if cached_tokens is None:
            if seen.usage_form not in retention.reports:
                return
            cached_tokens = 0
        now_s, start = decision.decided_s, 0
        oldest: tuple[float, float] | None = None  # age and tokens of what was kept
        for end, used_s in held:
            first, last = request.tokens_in(start), request.tokens_in(end)
            if cached_tokens < (first + last) / 2 and last - cached_tokens > LEAST_TOKENS:
                if now_s - used_s > _COMPUTED_S and not decision.queued_tokens:  # else it may not be computed yet
                    retention.observe(now_s - used_s, last - max(first, cached_tokens), kept=False)
                break
            if oldest is None or now_s - used_s >= oldest[0]:
                oldest = now_s - used_s, last - first
            start = end
        if oldest is not None:
            retention.observe(*oldest, kept=True)
        credit = decision.credit
        if credit is not None and credit.reply_tokens and cached_tokens > credit.prompt_tokens - LEAST_TOKENS:
            share = (cached_tokens - credit.prompt_tokens) / credit.reply_tokens
            self.answered.learn_share(decision.model, min(max(share, 0.0), 1.0))
        if cached_tokens > decision.cached_tokens + LEAST_TOKENS and credit is None:
            retention.surprised(cached_tokens - decision.cached_tokens)
        self.index.evicted_before(address, now_s - retention.value_s)
        if credit is None:
            expected_tokens = decision.cached_tokens * seen.prompt_tokens / max(1, request.tokens)
            self.others.answered(seen.prompt_tokens, cached_tokens, expected_tokens)

    def trim(self, now_s: float) -> None:
        """Engines that evict sooner than their capacity says have evicted more since."""
        addresses = self.pool.by_address
        self.retentions = {address: each for address, each in self.retentions.items() if address in addresses}
        for address, retention in self.retentions.items():
            self.index.evicted_before(address, now_s - retention.value_s)
        self.planner.drop_commands(addresses)
        self.answered.forget_all_but(self.pool.models)
        self.suspects.forget_all_but(addresses)
        self.transfers.forget_all_but(addresses)

    def cause_of(self, request: RequestFacts) -> int | None:
        """What stands for a request that may be why an engine failed; None: one has answered the very same.

        The same prompt with other parameters is another one: an engine may fail at these alone.
        """
        return None if self.answered_requests.get(request.cause) is not None else request.cause or None

    def prompt_failed(self, request: RequestFacts, tried: Sequence[Endpoint], sent_s: float, now_s: float) -> None:
        """It was sent at `sent_s`, and served by none of those that were `tried`: it may be why they failed."""
        for endpoint in tried:
            endpoint.failed_one(now_s)
        cause = self.cause_of(request)
        if cause is not None:
            self.suspects.failed((request.model, cause), tried, sent_s, now_s)

    def stream_lost(self, lost: Lost, endpoint: Endpoint, now_s: float) -> None:
        """The engine died over an answer, or at about the time when that ended: its prompt may be why."""
        endpoint.failed_one(now_s)
        self.answered_requests.drop(lost.key[1], endpoint.address)
        if lost.turn_key is not None:
            self.answered.drop(lost.turn_key, endpoint.address)
        self.suspects.failed(lost.key, [endpoint], lost.sent_s, now_s)

    def treatment(self, request: RequestFacts, now_s: float) -> Treatment | None:
        """Whether it is a prompt that may kill engines, and what becomes of it then."""
        cause = self.cause_of(request)
        return None if cause is None else self.suspects.treatment((request.model, cause), now_s)

    def flip(self, move: Move, request: RequestFacts, copied_share: float, now_s: float) -> FlipRefused | None:
        """The target holds this share of the prompt of `request`, which caused `move`: the session is bound there now.

        Returns why not, if it is not; then nothing has changed. `planner.ended` must follow either way.
        """
        target = self.pool.by_address.get(move.target)
        if target is None or target.generation != move.target_generation:
            return "target_restarted"
        if not target.health.healthy:
            return "target_unhealthy"
        if not self.sessions.flip(move.session, move.bound, move.target, now_s):
            return "session_gone"
        held = int(len(request.prefix) * copied_share)
        self.commit(msgspec.structs.replace(request, prefix=request.prefix[:held]), move.target, now_s)
        return None
