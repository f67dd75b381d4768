"""The mover: copies contexts in the background and flips a session's binding once its copy is confirmed.

`offer` is called on the request path, while the request's body is available, and returns at once. The planner bounds
how many copies run; a copy keeps its request's body until that is tokenized. If anything fails, the session stays where
it was and nothing is credited to the target: no binding is touched before the copy is confirmed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog

from fairlead.access import PLAIN
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.histogram import Histogram
from fairlead.core.moves import Move
from fairlead.core.router import Router
from fairlead.core.trace import Part, Trace, Value
from fairlead.engines.kv_transfer import (
    Connector,
    Copied,
    Deadlines,
    Party,
    Prompt,
    Stage,
    TransferError,
    copy_kv,
    tokenize,
)
from fairlead.engines.mooncake import Mooncake
from fairlead.engines.nixl import Nixl
from fairlead.migration.context import NotMovedError, cache_salt, tokenize_request, whole_blocks

MOST_BODY_BYTES: Final = 8 << 20  # the largest body kept for a copy; at most `most_copies` are kept
LEG_SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_DECIDED_EVERY_S: Final = 0.005
_DECIDED_WITHIN_S: Final = 2.0
_CONNECTORS: Final[Mapping[str, Connector]] = {"mooncake": Mooncake(), "nixl": Nixl()}

log = structlog.get_logger("fairlead.migration")


class CopyUnderWay(msgspec.Struct, frozen=True):
    """For people; it names no session."""

    source: str
    target: str
    tokens: int  # of the prompt, cached at the source
    age_s: float


class MoverCounts:
    """Counts since the start, for metrics. Every copy offered ends as done (in the planner), failed or dropped."""

    def __init__(self) -> None:
        self.failed: Counter[tuple[str, str]] = Counter()  # by stage and reason
        self.dropped: Counter[str] = Counter()  # by reason, where no engine is at fault
        self.tokens = 0  # tokens whose KV was copied
        self.bytes = 0  # of that KV, where the engine reports them or the model's bytes per token are known
        self.seconds: dict[Stage, Histogram] = {}


class Mover:
    """Makes the copies that the planner asks for, and reports to it how each ended.

    `is_decided` says whether the shared store, if there is one, has confirmed a session's last binding. Public
    attributes may be replaced at any time.
    """

    def __init__(
        self,
        router: Router,
        clock_s: Callable[[], float],
        is_decided: Callable[[bytes], bool] = lambda _: True,
    ) -> None:
        self.counts = MoverCounts()
        self.deadlines = Deadlines()
        self.bootstraps: Mapping[str, str] = {}  # endpoint address to host:port of its bootstrap server
        self.kv_bytes_per_token: Mapping[str, int] = {}  # by model, where it is known
        self._router = router
        self._clock_s = clock_s
        self._is_decided = is_decided
        self._copies: dict[asyncio.Task[str], tuple[Move, float]] = {}  # with when it began

    @property
    def under_way(self) -> int:
        return len(self._copies)

    def copies(self) -> list[CopyUnderWay]:
        """Oldest first."""
        now_s = self._clock_s()
        return [CopyUnderWay(m.source, m.target, m.tokens, now_s - since_s) for m, since_s in self._copies.values()]

    def offer(
        self, move: Move, request: RequestFacts, path: str, body: bytes | None, trace: Trace | None = None
    ) -> None:
        """Begin the copy for `move`, which `request` caused. Never waits and never raises.

        `body` may be None where it is longer than MOST_BODY_BYTES, which is too long to keep.
        """
        if body is None or len(body) > MOST_BODY_BYTES:
            self._drop(move, "too_large")
            return
        copy = asyncio.create_task(self._copy(move, request, path, body), name=f"copy {move.source} {move.target}")
        began_s = self._clock_s()
        self._copies[copy] = move, began_s
        if trace is not None:
            copy.add_done_callback(lambda done: trace.add(_part(move, done, began_s, self._clock_s())))
        copy.add_done_callback(lambda done: self._copies.pop(done, None))

    async def stop(self) -> None:
        """Cancel the copies under way: their sessions stay where they are."""
        for copy in self._copies:
            copy.cancel()
        if self._copies:
            await asyncio.wait(self._copies)

    async def _copy(self, move: Move, request: RequestFacts, path: str, body: bytes) -> str:
        """Why the session stays; empty where it moved."""
        try:
            source = self._router.pool.by_address.get(move.source)
            if source is None:
                raise NotMovedError("source_gone")
            parts, salt = tokenize_request(path, body, source.model), cache_salt(body)
            del body
            ids = await tokenize(self._party(move.source), parts, self.deadlines.tokenize_s)
            del parts
            await self._copy_and_flip(move, request, source, ids, salt)
        except NotMovedError as error:
            self._drop(move, error.reason)
            return error.reason
        except TransferError as error:
            if error.is_the_prompts:
                self._drop(move, f"{error.stage}_{error.reason}")
            else:
                self._fail(move, error.stage, error.reason)
            return f"{error.stage}_{error.reason}"
        except asyncio.CancelledError:
            self._drop(move, "stopped")
            raise
        except Exception:  # a bug of ours: counted and logged, and the session stays
            self._fail(move, "confirm", "fault")
            log.exception("a copy failed because of an internal error", source=move.source, target=move.target)
            return "fault"
        return ""

    async def _copy_and_flip(
        self, move: Move, request: RequestFacts, source: Endpoint, all_ids: list[int], salt: str
    ) -> None:
        block_tokens, connector = source.report.kv_block_tokens, _CONNECTORS.get(source.spec.kv_connector)
        if block_tokens is None:
            raise NotMovedError("block_size")
        if connector is None:  # a reload took it away
            raise NotMovedError("connector")
        # What the source holds may be counted in real tokens, and then the estimate of the whole is no measure of it.
        held = min(1.0, move.tokens / max(1, min(request.tokens, len(all_ids))))
        ids = whole_blocks(all_ids, held, block_tokens)
        if not ids:
            raise NotMovedError("short")
        here, there = self._party(move.source), self._party(move.target)
        known_tokens = round(len(all_ids) * min(1.0, move.known / request.tokens))
        prompt = Prompt(source.model, ids, block_tokens, salt, known_tokens)
        copied = await copy_kv(connector, here, there, prompt, self.deadlines)
        self._count(copied, source.model)
        refused = self._router.flip(move, request, len(ids) / len(all_ids), self._clock_s())
        if refused is not None:
            raise NotMovedError(refused)
        if not await self._won(move):
            raise NotMovedError("moved_elsewhere")  # another sidecar bound the session first, and that binding holds
        held = int(len(request.prefix) * len(ids) / len(all_ids))
        self._router.planner.ended(move, self._clock_s(), "done", request.prefix[:held])
        log.info("session moved", source=move.source, target=move.target, tokens=len(ids))

    async def _won(self, move: Move) -> bool:
        """Whether our binding holds once the shared store has decided; without a reachable store it does."""
        until_s = self._clock_s() + _DECIDED_WITHIN_S
        while not self._is_decided(move.session) and self._clock_s() < until_s:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(_DECIDED_EVERY_S)
        return self._router.sessions.address_of(move.session) == move.target

    def _party(self, address: str) -> Party:
        endpoint = self._router.pool.by_address.get(address)
        access = PLAIN if endpoint is None else endpoint.spec.access
        return Party(address, self.bootstraps.get(address, ""), access)

    def _drop(self, move: Move, reason: str) -> None:
        self.counts.dropped[reason] += 1
        self._router.planner.ended(move, self._clock_s(), "dropped")

    def _fail(self, move: Move, stage: Stage, reason: str) -> None:
        self.counts.failed[stage, reason] += 1
        self._router.planner.ended(move, self._clock_s(), "failed")

    def _count(self, copied: Copied, model: str) -> None:
        tokens = copied.tokens if copied.transferred_tokens is None else copied.transferred_tokens
        self.counts.tokens += tokens
        reported = copied.transferred_bytes
        self.counts.bytes += reported if reported is not None else tokens * self.kv_bytes_per_token.get(model, 0)
        for stage, seconds in copied.seconds.items():
            self.counts.seconds.setdefault(stage, Histogram(LEG_SECONDS)).observe(seconds)


def _part(move: Move, copy: asyncio.Task[str], began_s: float, now_s: float) -> Part:
    error = "stopped" if copy.cancelled() else copy.result()
    shown: dict[str, Value | None] = {
        "fairlead.source": move.source,
        "fairlead.target": move.target,
        "fairlead.cached_tokens": move.tokens,
    }
    return Part("fairlead.migration", began_s, now_s, shown, error)
