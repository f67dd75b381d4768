"""The mover: copies contexts in the background and flips a session's binding once its copy is confirmed.

`offer` is called on the request path, while the request's body is in hand, and returns at once. The planner has already
bounded how many copies run; a body is kept for one copy, until it has become token ids. Whatever fails, the session
stays where it was and nothing is credited to the target: no binding is touched before the copy is confirmed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from fairlead.core.facts import RequestFacts
from fairlead.core.moves import Move
from fairlead.core.pool import Endpoint
from fairlead.core.router import Router
from fairlead.engines.kv_transfer import Connector, Copied, Deadlines, Party, Stage, TransferError, copy_kv, tokenize
from fairlead.engines.mooncake import Mooncake
from fairlead.engines.nixl import Nixl
from fairlead.migration.context import NotMovedError, tokenize_request, whole_blocks
from fairlead.telemetry.recorder import Histogram

MOST_BODY_BYTES: Final = 8 << 20  # of one body kept for a copy; at most `most_copies` of them
LEG_SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_DECIDED_EVERY_S: Final = 0.005
_DECIDED_WITHIN_S: Final = 2.0
_CONNECTORS: Final[Mapping[str, Connector]] = {"mooncake": Mooncake(), "nixl": Nixl()}

log = structlog.get_logger("fairlead.migration")


class MoverCounts:
    """Since the start, for metrics. Every copy that was offered ends as done in the planner, failed or dropped."""

    def __init__(self) -> None:
        self.failed: Counter[tuple[str, str]] = Counter()  # by stage and reason
        self.dropped: Counter[str] = Counter()  # by reason: nobody's fault
        self.tokens = 0  # whose KV went from one engine to another
        self.bytes = 0  # of that KV, where the engine tells them or the model's bytes a token are known
        self.seconds: dict[Stage, Histogram] = {}


class Mover:
    """Copies what the planner says, and tells it how each copy ended.

    `decided` tells whether the shared store, where there is one, has settled a session's last binding.
    """

    def __init__(
        self,
        router: Router,
        bootstraps: Callable[[], Mapping[str, str]],
        clock_s: Callable[[], float],
        deadlines: Deadlines,
        decided: Callable[[bytes], bool] = lambda _: True,
        kv_bytes_per_token: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        self.counts = MoverCounts()
        self.deadlines = deadlines
        self._router = router
        self._bootstraps = bootstraps  # host:port of the bootstrap server by the endpoint's address
        self._clock_s = clock_s
        self._decided = decided
        self._kv_bytes_per_token = kv_bytes_per_token  # by model
        self._copies: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> int:
        return len(self._copies)

    def offer(self, move: Move, request: RequestFacts, path: str, body: bytes) -> None:
        """Begin the copy of `move`, which `request` caused. Never waits and never raises."""
        if len(body) > MOST_BODY_BYTES:
            self._drop(move, "too_large")
            return
        copy = asyncio.create_task(self._copy(move, request, path, body), name=f"copy {move.source} {move.target}")
        self._copies.add(copy)
        copy.add_done_callback(self._copies.discard)

    async def stop(self) -> None:
        """Give up what is under way: the sessions stay where they are."""
        for copy in self._copies:
            copy.cancel()
        if self._copies:
            await asyncio.wait(self._copies)

    async def _copy(self, move: Move, request: RequestFacts, path: str, body: bytes) -> None:
        try:
            source = self._router.pool.by_address.get(move.source)
            if source is None:
                raise NotMovedError("source_gone")
            parts = tokenize_request(path, body, source.model)
            del body
            ids = await tokenize(self._party(move.source), parts, self.deadlines.tokenize_s)
            del parts
            await self._copy_and_flip(move, request, source, ids)
        except NotMovedError as error:
            self._drop(move, error.reason)
        except TransferError as error:
            self._fail(move, error.stage, error.reason)
        except asyncio.CancelledError:
            self._drop(move, "stopped")
            raise
        except Exception:  # a fault of ours: counted and told, and the session stays
            self._fail(move, "confirm", "fault")
            log.exception("a copy failed by a fault of ours", source=move.source, target=move.target)

    async def _copy_and_flip(self, move: Move, request: RequestFacts, source: Endpoint, all_ids: list[int]) -> None:
        block_tokens, connector = source.reported.kv_block_tokens, _CONNECTORS.get(source.kv_connector)
        if block_tokens is None:
            raise NotMovedError("block_size")
        if connector is None:  # a reload took it away
            raise NotMovedError("connector")
        ids = whole_blocks(all_ids, move.tokens / request.tokens, block_tokens)
        if not ids:
            raise NotMovedError("short")
        here, there = self._party(move.source), self._party(move.target)
        copied = await copy_kv(connector, here, there, source.model, ids, block_tokens, self.deadlines)
        self._count(copied, source.model)
        refused = self._router.flip(move, request, len(ids) / len(all_ids), self._clock_s())
        if refused is not None:
            raise NotMovedError(refused)
        if not await self._won(move):
            raise NotMovedError("moved_elsewhere")  # another sidecar was first, and its word holds everywhere
        self._router.planner.ended(move, self._clock_s(), "done")
        log.info("session moved", source=move.source, target=move.target, tokens=len(ids))

    async def _won(self, move: Move) -> bool:
        """Whether the binding stood when the shared store had decided; without a store in reach it does."""
        until_s = self._clock_s() + _DECIDED_WITHIN_S
        while not self._decided(move.session) and self._clock_s() < until_s:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(_DECIDED_EVERY_S)
        return self._router.sessions.address_of(move.session) == move.target

    def _party(self, address: str) -> Party:
        return Party(address, self._bootstraps().get(address, ""))

    def _drop(self, move: Move, reason: str) -> None:
        self.counts.dropped[reason] += 1
        self._router.planner.ended(move, self._clock_s(), "dropped")

    def _fail(self, move: Move, stage: Stage, reason: str) -> None:
        self.counts.failed[stage, reason] += 1
        self._router.planner.ended(move, self._clock_s(), "failed")

    def _count(self, copied: Copied, model: str) -> None:
        tokens = copied.tokens if copied.transferred_tokens is None else copied.transferred_tokens
        self.counts.tokens += tokens
        told = copied.transferred_bytes
        self.counts.bytes += told if told is not None else tokens * (self._kv_bytes_per_token(model) or 0)
        for stage, seconds in copied.seconds.items():
            self.counts.seconds.setdefault(stage, Histogram(LEG_SECONDS)).observe(seconds)
