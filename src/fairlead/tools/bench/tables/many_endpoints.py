"""A decision among 1,000 endpoints while the tables are filled: 100,000 sessions, each with a prompt held somewhere.

`extproc.pick.pick` is timed as it is, as in `bench.decision`. Of two routers one has empty tables and the other filled
ones; they take turns with the same bodies, so that the difference is the tables' and not the moment's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Final, Literal

import msgspec

from fairlead.api.paths import CHAT_COMPLETIONS
from fairlead.core.facts import session_key
from fairlead.extproc.pick import Pick, pick
from fairlead.extproc.request import HttpRequest
from fairlead.extproc.services import Services
from fairlead.serving.memory import spare_from_collection
from fairlead.statistics import quantile
from fairlead.tools.bench.bodies import KINDS, chat_body
from fairlead.tools.bench.decision import MODEL, made_up, request_headers
from fairlead.tools.bench.tables.prefixes import addresses_of, fill

Turn = Literal["empty", "known", "new"]
TURNS: Final[tuple[Turn, ...]] = ("empty", "known", "new")
ENDPOINTS: Final = 1000
SESSIONS: Final = 100_000
BODY_KIB: Final = 64

_BODIES: Final = 3
_WARM_UP: Final = 5
_IN_A_ROW: Final = 10  # of one kind of turn, before the next kind has its turn
_AFTER_A_CHANGE: Final = 2  # not counted: what the other router did is still in the processor's cache
_LEAST_REPEATS: Final = 10
_OWN_BLOCKS: Final = 24  # of a session's prompt, after the head that it shares


class ManyEndpointsCell(msgspec.Struct, frozen=True):
    """One kind of body. empty: nothing in the tables; known, new: a session that the full table has, and has not."""

    kind: str
    turn: Turn
    repeats: int
    median_us: float
    p99_us: float


class Routers:
    """Both routers. `sessions` live on `endpoints`, evenly."""

    def __init__(self, seed: int, endpoints: int, sessions: int) -> None:
        self.empty, self.full = made_up("fairlead", endpoints, seed), made_up("fairlead", endpoints, seed)
        spare_from_collection()  # as `serve` does when it has started
        self._sessions = sessions
        self._new = count()
        self._known = count()
        addresses, started_s = addresses_of(endpoints), time.perf_counter()
        fill(
            self.full.router.index, addresses, sessions // endpoints * _OWN_BLOCKS, _OWN_BLOCKS, Random(seed), started_s
        )
        for number in range(sessions):
            key = session_key(b"session-%d" % number)
            self.full.router.sessions.bind(key, addresses[number % endpoints], started_s)

    def turn(self, turn: Turn) -> tuple[Services, bytes]:
        """Which router, and the session id of the next request."""
        if turn == "empty":
            return self.empty, b"new-%d" % next(self._new)
        if turn == "new":
            return self.full, b"new-%d" % next(self._new)
        return self.full, b"session-%d" % (next(self._known) * 7919 % self._sessions)  # far from each other


def measure(
    seed: int, cell_budget_s: float, most_repeats: int, *, endpoints: int = ENDPOINTS, sessions: int = SESSIONS
) -> Iterator[ManyEndpointsCell]:
    """Measure every cell for about `cell_budget_s` each."""
    routers = Routers(seed, endpoints, sessions)
    for kind in KINDS:
        bodies = [chat_body(kind, BODY_KIB * 1024, MODEL, seed + n) for n in range(_BODIES)]
        times_us: dict[Turn, list[float]] = {turn: [] for turn in TURNS}
        for turn in TURNS:
            _take(routers, turn, bodies, _WARM_UP)
        until_s = time.perf_counter() + cell_budget_s * len(TURNS)
        taken = 0
        while taken < _LEAST_REPEATS or (taken < most_repeats and time.perf_counter() < until_s):
            for turn in TURNS:
                _take(routers, turn, bodies, _AFTER_A_CHANGE)
                times_us[turn] += _take(
                    routers, turn, bodies, min(_IN_A_ROW, max(_LEAST_REPEATS, most_repeats) - taken)
                )
            taken = len(times_us["empty"])
        for turn, times in times_us.items():
            yield ManyEndpointsCell(kind, turn, len(times), quantile(times, 0.5), quantile(times, 0.99))


def _take(routers: Routers, turn: Turn, bodies: list[bytes], repeats: int) -> list[float]:
    times_us = []
    for number in range(repeats):
        shared, session = routers.turn(turn)
        headers = request_headers(session)
        started_ns = time.perf_counter_ns()
        picked = pick(shared, HttpRequest(CHAT_COMPLETIONS, headers, b"bench-request", bodies[number % len(bodies)]))
        times_us.append((time.perf_counter_ns() - started_ns) / 1e3)
        assert isinstance(picked, Pick), picked
        picked.in_flight.ended(0.0)
    return times_us
