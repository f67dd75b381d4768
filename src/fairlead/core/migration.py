"""Moving a session off a hot host: whether, to which endpoint, and how. It decides; what copies KV is elsewhere.

A session stays where its context is cached until too many tokens wait for prefill there, or it would itself wait for
room in the KV cache. Then its next request may send it to the endpoint of the same model with the fewest tokens
waiting. Loads are what the router observes, never a predicted transfer time. Source: EAR, section 4.3; that a full
cache makes a host hot is ours. An operator may order a session elsewhere, or drain a whole endpoint: then the load,
the context's size and the cool-down do not count.

What moves is the context of one agent and the session's binding. Other agents that share its id stay where theirs are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, Literal, get_args

import msgspec

from fairlead.core.facts import RequestFacts
from fairlead.core.moves import How, Move, Stay, Why, is_crowded, may_host, pays, pending_tokens, way_between
from fairlead.core.pool import Endpoint
from fairlead.core.sessions import SessionTable

COOL_SHARE: Final = 0.5  # of the threshold: a hot host is hot until it is down to this
FIRST_PAUSE_S: Final = 5.0  # of an endpoint after a copy that failed there; doubles with each further one
LONGEST_PAUSE_S: Final = 300.0

MOST_ORDERS: Final = 1000
MOST_TIMES: Final = 16  # a session that moved more often counts as this

Outcome = Literal["done", "failed", "dropped"]


class Rules(msgspec.Struct, frozen=True):
    """When to move. Tokens are as the router estimates them, times are seconds.

    A host is hot with more than `hot_tokens` waiting for prefill, and more than `hot_ratio` times the median of the
    other endpoints of its model. A prompt that its KV cache has no room for while others run waits there too.
    """

    hot_tokens: int = 16_384
    hot_ratio: float = 2.0
    cool_down_s: float = 60.0  # in which a session does not move again
    least_tokens: int = 2048  # of context: less is not worth a move, and no agent's own
    most_copies: int = 4  # at once
    most_copies_per_endpoint: int = 1  # as their source or as their target


NO_HOST_IS_HOT: Final = Rules(hot_tokens=1 << 62)  # only an operator moves sessions

_STAYS: Final[Mapping[Why, Stay]] = {why: Stay(why) for why in get_args(Why)}


class Planner:
    """`consider` each request that affinity would send to its session's host; `ended` when a copy has ended.

    Its memory is bounded by the endpoints; when a session last moved is kept with the session, in `sessions`. Public
    counts are for metrics: moves planned and done, sessions that stayed on a hot host, by reason, moves back to where a
    session had come from, and how often the sessions that moved have moved by then.
    """

    def __init__(self, rules: Rules, sessions: SessionTable) -> None:
        self.rules = rules
        self.planned: Counter[How] = Counter()
        self.done: Counter[How] = Counter()
        self.stayed: Counter[Why] = Counter()
        self.back = 0
        self.times: Counter[int] = Counter()
        self.draining: set[str] = set()  # addresses: their sessions move away, and no new ones come
        self.orders: dict[bytes, str] = {}  # the targets of sessions that an operator wants elsewhere
        self._sessions = sessions
        self._hot: set[str] = set()
        self._copies: Counter[str] = Counter()  # under way, by source and by target
        self._copied: set[bytes] = set()  # the sessions of these
        self._failures: dict[str, tuple[int, float]] = {}  # in a row, and until when nothing is copied

    def consider(
        self,
        request: RequestFacts,
        host: Endpoint,
        endpoints: Sequence[Endpoint],
        cached_tokens: Mapping[str, int],
        now_s: float,
    ) -> Move | Stay | None:
        """What to do with the request's session, which lives at `host`; None while nothing speaks for a move.

        `endpoints` are those that the request may go to, `cached_tokens` what each of them holds of its prompt. After
        a `Move` the session does not move again for `cool_down_s`, whether the move succeeds or not, and `ended` must
        follow if it is a copy.
        """
        session = request.session
        if session is None:
            return None
        if session in self.orders or host.address in self.draining:
            found = self._as_ordered(request, session, host, endpoints, cached_tokens, now_s)
        elif self._is_hot(host, endpoints, request.tokens):
            found = self._plan(request, session, host, endpoints, cached_tokens, now_s)
        else:
            return None
        if isinstance(found, Stay):
            self.stayed[found.why] += 1
            return found
        self.orders.pop(session, None)
        self.planned[found.how] += 1
        self._sessions.tried_to_move(found.session, now_s)
        if found.how == "copy":
            self._copied.add(found.session)
            self._copies.update((found.source, found.target))
        else:
            self._made(found)
        return found

    def ended(self, move: Move, now_s: float, outcome: Outcome) -> None:
        """A copy ended: the session moved, or the copy failed, or it was no longer wanted.

        After a failure both ends are left alone for a while, longer each time.
        """
        if outcome == "done":
            self._made(move)
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

    def _made(self, move: Move) -> None:
        moved = self._sessions.moved(move.session, move.source, move.target)
        self.done[move.how] += 1
        self.back += moved.back
        self.times[min(moved.times, MOST_TIMES)] += 1

    def forget(self, address: str) -> None:
        """The endpoint left the pool."""
        self._hot.discard(address)
        self.draining.discard(address)
        self._failures.pop(address, None)

    def order(self, session: bytes, target: str) -> bool:
        """Move `session` to `target` at its next request; False if too many sessions wait for theirs."""
        if len(self.orders) >= MOST_ORDERS and session not in self.orders:
            return False
        self.orders[session] = target
        return True

    def copies(self, session: bytes) -> bool:
        """Whether the session's context is being copied now."""
        return session in self._copied

    def home(
        self, request: RequestFacts, bound: str, endpoints: Sequence[Endpoint], cached_tokens: Mapping[str, int]
    ) -> str:
        """Where the request belongs, whose session is bound to `bound`: there, or where its own context stayed.

        Agents that share a session's id share little of their contexts, and a move takes one of them along. The others
        are served where theirs are until they move themselves or that endpoint drains. What another sidecar moved lives
        where that one says: the prefix index does not know of its copy.
        """
        if request.session is None or not self._sessions.was_moved_here(request.session):
            return bound
        model = next((e.model for e in endpoints if e.address == bound), None)
        stayed = max(
            [e.address for e in endpoints if e.model == model and e.address not in self.draining],
            key=lambda address: cached_tokens.get(address, 0),
            default=bound,
        )
        missing = cached_tokens.get(stayed, 0) - cached_tokens.get(bound, 0)
        return stayed if missing >= self.rules.least_tokens else bound

    def spared(self, endpoints: Sequence[Endpoint], host: str | None) -> Sequence[Endpoint]:
        """Those that a request may go to while some drain: not these, but for the sessions that live there."""
        return [e for e in endpoints if e.address not in self.draining or e.address == host] or endpoints

    def _plan(
        self,
        request: RequestFacts,
        session: bytes,
        host: Endpoint,
        endpoints: Sequence[Endpoint],
        cached_tokens: Mapping[str, int],
        now_s: float,
    ) -> Move | Stay:
        rules, tokens = self.rules, request.tokens
        held = min(cached_tokens.get(host.address, 0), tokens)
        if self._sessions.since_move_s(session, now_s) < rules.cool_down_s:
            return _STAYS["cooling"]
        if tokens < rules.least_tokens:
            return _STAYS["small"]
        waiting = _waiting_tokens(host, tokens)
        target = self._least_loaded([e for e in endpoints if pending_tokens(e) < waiting], host, tokens)
        if target is None:
            return _STAYS["no_target"]
        known = min(cached_tokens.get(target.address, 0), tokens)
        how = self._way(host, target, held - known)
        if how == "recompute" and not pays(tokens, host, held, target, known):
            return _STAYS["dear"]
        return self._move(session, host, target, how, held, now_s)

    def _as_ordered(
        self,
        request: RequestFacts,
        session: bytes,
        host: Endpoint,
        endpoints: Sequence[Endpoint],
        cached_tokens: Mapping[str, int],
        now_s: float,
    ) -> Move | Stay:
        wanted = self.orders.get(session)
        target = self._least_loaded(
            [e for e in endpoints if wanted is None or e.address == wanted], host, request.tokens
        )
        if target is None:
            return _STAYS["no_target"]
        held = min(cached_tokens.get(host.address, 0), request.tokens)
        how = self._way(host, target, held - cached_tokens.get(target.address, 0))
        return self._move(session, host, target, how, held, now_s)

    def _least_loaded(self, endpoints: Sequence[Endpoint], host: Endpoint, tokens: int) -> Endpoint | None:
        fit = [e for e in endpoints if e.address not in self.draining and may_host(e, host, tokens)]
        return min(fit, key=lambda e: (pending_tokens(e), e.last_chosen), default=None)

    def _way(self, host: Endpoint, target: Endpoint, missing: int) -> How:
        """`missing` tokens are held by the host and not by the target: few of them are soon computed again."""
        return way_between(host, target) if missing >= self.rules.least_tokens else "recompute"

    def _move(self, session: bytes, host: Endpoint, target: Endpoint, how: How, held: int, now_s: float) -> Move | Stay:
        if session in self._copied or (how == "copy" and not self._may_copy(host.address, target.address, now_s)):
            return _STAYS["busy"]
        bound = self._sessions.address_of(session) or host.address
        return Move(session, host.address, target.address, how, held, host.generation, target.generation, bound)

    def _is_hot(self, host: Endpoint, endpoints: Sequence[Endpoint], tokens: int) -> bool:
        rules, waiting = self.rules, _waiting_tokens(host, tokens)
        was_hot = host.address in self._hot
        share = COOL_SHARE if was_hot else 1.0
        hot = waiting > share * rules.hot_tokens
        if hot:
            others = [pending_tokens(e) for e in endpoints if e.model == host.model and e is not host]
            hot = bool(others) and waiting > share * rules.hot_ratio * median(others)
        if hot and not was_hot:
            self._hot.add(host.address)
        elif was_hot and not hot:
            self._hot.remove(host.address)
        return hot

    def _may_copy(self, source: str, target: str, now_s: float) -> bool:
        most = self.rules.most_copies_per_endpoint
        if len(self._copied) >= self.rules.most_copies or max(self._copies[source], self._copies[target]) >= most:
            return False
        return all(now_s >= self._failures[a][1] for a in (source, target) if a in self._failures)


def _waiting_tokens(host: Endpoint, tokens: int) -> int:
    """Of those that wait at the host once a prompt of `tokens` is there: with it, if it must wait for room."""
    return pending_tokens(host) + (tokens if is_crowded(host, tokens) else 0)
