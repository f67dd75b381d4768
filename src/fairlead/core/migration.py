"""Moving a session off a hot endpoint: whether, to which endpoint, and how. It decides; what copies KV is elsewhere.

A session stays where its context is cached until too many tokens wait for prefill there, or it would itself wait for
room in the KV cache. Then its next request may send it to the endpoint of the same model with the fewest tokens
waiting. Loads are what the router observes, never a predicted transfer time. Source: EAR, section 4.3; that a full
cache makes an endpoint hot is ours. An operator may send a session elsewhere, or drain a whole endpoint: then the
load, the context's size and the cool-down do not count.

What moves is the context of one agent and the session's binding. Other agents that share its id stay where theirs are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from statistics import median
from typing import Final, Literal, get_args

import msgspec

from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.moves import (
    How,
    Move,
    Stay,
    StayReason,
    may_take,
    must_wait_for_room,
    pending_tokens,
    recompute_is_faster,
    way_between,
)
from fairlead.core.sessions import SessionTable

COOL_SHARE: Final = 0.5  # of the threshold: below it a hot endpoint is hot no longer
FIRST_PAUSE_S: Final = 5.0  # without copies at an endpoint where one failed; doubles with each further failure
LONGEST_PAUSE_S: Final = 300.0

MOST_COMMANDS: Final = 1000
_MOST_NOT_COPIED: Final = 10_000
MOST_TIMES: Final = 16  # moves of one session that are counted apart; more count as this many

CopyOutcome = Literal["done", "failed", "dropped", "withdrawn"]


class Rules(msgspec.Struct, frozen=True):
    """When to move. Tokens are as the router estimates them, times are seconds.

    An endpoint is hot with more than `hot_tokens` waiting for prefill, and more than `hot_ratio` times the median of
    the other endpoints of its model. A prompt that its KV cache has no room for while others run waits there too.
    """

    hot_tokens: int = 16_384
    hot_ratio: float = 2.0
    cool_down_s: float = 60.0  # after a move, in which the session does not move again
    least_tokens: int = 2048  # of context: less is not worth a move, and is not taken for an agent's own
    most_copies: int = 4  # at once
    most_copies_per_endpoint: int = 1  # as their source or as their target


NOTHING_IS_HOT: Final = Rules(hot_tokens=1 << 62)  # only an operator moves sessions

_STAYS: Final[Mapping[StayReason, Stay]] = {why: Stay(why) for why in get_args(StayReason)}


class Planner:
    """`consider` each request that affinity would send to its session's endpoint; `ended` when a copy has ended.

    Its memory is bounded by the endpoints; when a session last moved is kept with the session, in `sessions`. Public
    counts are for metrics: moves planned and done, sessions that stayed on a hot endpoint, by reason, moves back to
    where a session had come from, and how often the sessions that moved have moved by then.
    """

    def __init__(self, rules: Rules, sessions: SessionTable) -> None:
        self.rules = rules
        self.planned: Counter[How] = Counter()
        self.done: Counter[How] = Counter()
        self.stayed: Counter[StayReason] = Counter()
        self.back = 0
        self.times: Counter[int] = Counter()
        self.draining: set[str] = set()  # addresses: their sessions move away, and no new ones come
        self.on_move: Callable[[bytes, str, str, Sequence[int]], None] | None = None  # session, from, to, its chain
        self.commands: dict[bytes, str] = {}  # the targets of sessions that an operator wants elsewhere
        self._sessions = sessions
        self._hot: set[str] = set()
        self._copies: Counter[str] = Counter()  # copies under way, by source and by target
        self._copied: set[bytes] = set()  # sessions that are being copied
        self._not_copied: dict[bytes, None] = {}  # sessions of draining endpoints whose copy was not made, oldest first
        self._failures: dict[str, tuple[int, float]] = {}  # by address: how many in a row, and until when it pauses

    def consider(
        self,
        request: RequestFacts,
        source: Endpoint,
        endpoints: Sequence[Endpoint],
        cached_tokens: Mapping[str, int],
        now_s: float,
    ) -> Move | Stay | None:
        """What to do with the request's session, which is bound to `source`; None while there is no reason to move.

        `endpoints` are those that the request may go to, `cached_tokens` what each of them holds of its prompt. After
        a `Move` the session does not move again for `cool_down_s`, whether the move succeeds or not, and `ended` must
        follow if it is a copy.
        """
        session = request.session
        if session is None:
            return None
        if session in self.commands or source.address in self.draining:
            found = self._as_commanded(request, session, source, endpoints, cached_tokens, now_s)
        elif self._is_hot(source, endpoints, request.tokens):
            found = self._plan(request, session, source, endpoints, cached_tokens, now_s)
        else:
            return None
        if isinstance(found, Stay):
            self.stayed[found.why] += 1
            return found
        self.commands.pop(session, None)
        self.planned[found.how] += 1
        self._sessions.tried_to_move(found.session, now_s)
        if found.how == "copy":
            self._copied.add(found.session)
            self._copies.update((found.source, found.target))
        else:
            self._made(found, request.prefix)
        return found

    def ended(self, move: Move, now_s: float, outcome: CopyOutcome, chain: Sequence[int] = ()) -> None:
        """A copy ended: the session moved with the context of this prefix chain, or the copy failed, was no longer
        wanted or not possible, or never began, because its request was withdrawn.

        After a failure both ends are left alone for a while, longer each time.
        """
        if outcome == "done":
            self._made(move, chain)
        elif outcome != "withdrawn" and move.source in self.draining:
            if len(self._not_copied) >= _MOST_NOT_COPIED:
                self._not_copied.pop(next(iter(self._not_copied)))
            self._not_copied[move.session] = None
        self._copied.discard(move.session)
        for address in (move.source, move.target):
            self._copies[address] -= 1
            if not self._copies[address]:
                del self._copies[address]
            if outcome == "failed":
                times = self._failures.get(address, (0, 0.0))[0] + 1
                pause_s = min(FIRST_PAUSE_S * 2.0 ** min(times - 1, 16), LONGEST_PAUSE_S)
                self._failures[address] = (times, now_s + pause_s)
            elif outcome == "done":
                self._failures.pop(address, None)

    def _made(self, move: Move, chain: Sequence[int]) -> None:
        if self.on_move is not None:
            self.on_move(move.session, move.source, move.target, chain)
        moved = self._sessions.moved(move.session, move.source, move.target)
        self._not_copied.pop(move.session, None)
        self.done[move.how] += 1
        self.back += moved.back
        self.times[min(moved.times, MOST_TIMES)] += 1

    def forget(self, address: str) -> None:
        """The endpoint left the pool."""
        self._hot.discard(address)
        self.draining.discard(address)
        self._failures.pop(address, None)

    def command(self, session: bytes, target: str) -> bool:
        """Move `session` to `target` at its next request; False if too many sessions wait for theirs."""
        if len(self.commands) >= MOST_COMMANDS and session not in self.commands:
            return False
        self.commands[session] = target
        return True

    def drop_commands(self, addresses: Container[str]) -> None:
        """Of sessions that ended or are at their target already, and to targets that are not in the pool any more."""
        self.commands = {
            session: target
            for session, target in self.commands.items()
            if target in addresses and self._sessions.address_of(session) not in (None, target)
        }

    def copies(self, session: bytes) -> bool:
        """Whether the session's context is being copied now."""
        return session in self._copied

    def stayed_at(
        self, request: RequestFacts, bound: str, endpoints: Sequence[Endpoint], cached_tokens: Mapping[str, int]
    ) -> str:
        """Where the request belongs, whose session is bound to `bound`: there, or where its own context stayed.

        Agents that share a session's id share little of their contexts, and a move takes one of them along. The others
        are served where theirs are until they move themselves or that endpoint drains. Of a session that another
        sidecar moved, the prefix index knows what moved, and perhaps nothing of the others: a long context that did not
        move belongs to where the session was before.
        """
        moved = None if request.session is None else self._sessions.left_by_move(request.session)
        if moved is None:
            return bound
        model = next((e.model for e in endpoints if e.address == bound), None)
        stayed = max(
            [e.address for e in endpoints if e.model == model and e.address not in self.draining],
            key=lambda address: cached_tokens.get(address, 0),
            default=bound,
        )
        least, known = self.rules.least_tokens, cached_tokens.get(bound, 0)
        if cached_tokens.get(stayed, 0) - known >= least:
            return stayed
        left, by_another = moved
        is_another_agents = by_another and known < least <= request.tokens and left not in self.draining
        return left if is_another_agents and any(e.address == left and e.model == model for e in endpoints) else bound

    def without_draining(self, endpoints: Sequence[Endpoint], source: str | None) -> Sequence[Endpoint]:
        """Those not draining, and `source`, where the session is bound; all of them if that leaves none."""
        return [e for e in endpoints if e.address not in self.draining or e.address == source] or endpoints

    def _plan(
        self,
        request: RequestFacts,
        session: bytes,
        source: Endpoint,
        endpoints: Sequence[Endpoint],
        cached_tokens: Mapping[str, int],
        now_s: float,
    ) -> Move | Stay:
        rules, tokens = self.rules, request.tokens
        held = min(cached_tokens.get(source.address, 0), tokens)
        if self._sessions.since_move_s(session, now_s) < rules.cool_down_s:
            return _STAYS["cooling"]
        if tokens < rules.least_tokens:
            return _STAYS["small"]
        waiting = _waiting_tokens(source, tokens)
        target = self._least_loaded([e for e in endpoints if pending_tokens(e) < waiting], source, tokens)
        if target is None:
            return _STAYS["no_target"]
        known = min(cached_tokens.get(target.address, 0), tokens)
        how = self._way(source, target, held - known)
        if how == "recompute" and not recompute_is_faster(tokens, source, held, target, known):
            return _STAYS["too_expensive"]
        return self._move(session, source, target, how, held, known, now_s)

    def _as_commanded(
        self,
        request: RequestFacts,
        session: bytes,
        source: Endpoint,
        endpoints: Sequence[Endpoint],
        cached_tokens: Mapping[str, int],
        now_s: float,
    ) -> Move | Stay:
        wanted = self.commands.get(session)
        target = self._least_loaded(
            [e for e in endpoints if wanted is None or e.address == wanted], source, request.tokens
        )
        if target is None:
            return _STAYS["no_target"]
        held = min(cached_tokens.get(source.address, 0), request.tokens)
        known = min(cached_tokens.get(target.address, 0), request.tokens)
        how = self._way(source, target, held - known)
        if how == "copy" and source.address in self.draining:  # an operator waits until nothing is left there
            paused = self._is_paused(source.address, target.address, now_s)
            how = "recompute" if paused or session in self._not_copied else how
        return self._move(session, source, target, how, held, known, now_s)

    def _least_loaded(self, endpoints: Sequence[Endpoint], source: Endpoint, tokens: int) -> Endpoint | None:
        fit = [e for e in endpoints if e.address not in self.draining and may_take(e, source, tokens)]
        return min(fit, key=lambda e: (pending_tokens(e), e.last_chosen), default=None)

    def _way(self, source: Endpoint, target: Endpoint, missing: int) -> How:
        """`missing` tokens are held by the source and not by the target: few of them are soon computed again."""
        return way_between(source, target) if missing >= self.rules.least_tokens else "recompute"

    def _move(
        self, session: bytes, source: Endpoint, target: Endpoint, how: How, held: int, known: int, now_s: float
    ) -> Move | Stay:
        if session in self._copied or (how == "copy" and not self._may_copy(source.address, target.address, now_s)):
            return _STAYS["busy"]
        bound = self._sessions.address_of(session) or source.address
        return Move(session, source.address, target.address, how, held, target.generation, bound, known)

    def _is_hot(self, source: Endpoint, endpoints: Sequence[Endpoint], tokens: int) -> bool:
        rules, waiting = self.rules, _waiting_tokens(source, tokens)
        was_hot = source.address in self._hot
        share = COOL_SHARE if was_hot else 1.0
        hot = waiting > share * rules.hot_tokens
        if hot:
            others = [pending_tokens(e) for e in endpoints if e.model == source.model and e is not source]
            hot = bool(others) and waiting > share * rules.hot_ratio * median(others)
        if hot and not was_hot:
            self._hot.add(source.address)
        elif was_hot and not hot:
            self._hot.remove(source.address)
        return hot

    def _may_copy(self, source: str, target: str, now_s: float) -> bool:
        most = self.rules.most_copies_per_endpoint
        if len(self._copied) >= self.rules.most_copies or max(self._copies[source], self._copies[target]) >= most:
            return False
        return not self._is_paused(source, target, now_s)

    def _is_paused(self, source: str, target: str, now_s: float) -> bool:
        """Whether a copy failed at one of them a short while ago."""
        return any(now_s < self._failures[a][1] for a in (source, target) if a in self._failures)


def _waiting_tokens(source: Endpoint, tokens: int) -> int:
    """Tokens waiting at the source once a prompt of `tokens` is there; the prompt counts if it must wait for room."""
    return pending_tokens(source) + (tokens if must_wait_for_room(source, tokens) else 0)
