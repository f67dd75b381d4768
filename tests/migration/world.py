"""Simulated engines with KV connectors, and a mover between them as a sidecar has it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import httpx
import msgspec

from fairlead.api.prompt import Prompt, parse
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts, make_facts
from fairlead.core.migration import Planner, Rules
from fairlead.core.moves import Move
from fairlead.core.pool import Pool
from fairlead.core.reported import EngineIdentity, EngineReport
from fairlead.core.router import Router
from fairlead.migration.mover import Mover
from fairlead.policies import build_policy
from fairlead.tools.simulate.kv_exchange import KvOptions
from fairlead.tools.simulate.server import EngineOptions, RunningEngine
from tests.core.world import carries, make_endpoint
from tests.engines.world import PATIENT
from tests.tools.simulate.conftest import FAST, WITHIN_S
from tests.waiting import until

CHAT: Final = "/v1/chat/completions"
RULES: Final = Rules(hot_tokens=1000, least_tokens=500, cool_down_s=60.0)


def options() -> EngineOptions:
    return EngineOptions(model="m", parameters=FAST, kv=KvOptions("mooncake", abort_timeout_s=600.0))


@dataclass
class Turn:
    """One request of a session and what was decided for it."""

    facts: RequestFacts
    body: bytes
    move: Move


@dataclass
class World:
    """Engines; the first is the host of every session, and hot."""

    engines: list[RunningEngine]
    decided: Callable[[bytes], bool] = lambda _: True
    router: Router = field(init=False)
    planner: Planner = field(init=False)
    mover: Mover = field(init=False)

    def __post_init__(self) -> None:
        said = EngineReport(kv_block_tokens=FAST.block_size)
        pool = Pool(
            [
                make_endpoint(e.address, "m", kv_connector="mooncake", identity=EngineIdentity("0.32.0"), report=said)
                for e in self.engines
            ],
            {},
        )
        self.router = Router(pool, build_policy("ear", {}), fallbacks=2, rng=Random(0), rules=RULES)
        self.planner = self.router.planner
        self.mover = Mover(self.router, time.perf_counter, self.decided)
        self.mover.deadlines, self.mover.bootstraps = PATIENT, self.bootstraps()
        carries(self.host, pending_prefill_tokens=50_000)

    @property
    def host(self) -> Endpoint:
        return self.router.pool.endpoints[0]

    @property
    def target(self) -> Endpoint:
        return self.router.pool.endpoints[1]

    def bootstraps(self) -> dict[str, str]:
        return {e.address: e.exchange.address for e in self.engines if e.exchange is not None}

    async def turn(self, session: str = "s", number: int = 0, *, path: str = CHAT, **more: Any) -> Turn:
        """The host serves a turn, and then the session's next one is decided."""
        body = conversation(session, number) | more
        async with httpx.AsyncClient(timeout=WITHIN_S) as client:
            (await client.post(f"http://{self.host.address}{path}", json=body)).raise_for_status()
        facts = self.facts(body, session, path)
        self.router.commit(facts, self.host.address, time.perf_counter())
        return self.plan(conversation(session, number + 1) | more, session, path)

    def facts(self, body: dict[str, Any], session: str, path: str = CHAT) -> RequestFacts:
        prompt = parse(msgspec.json.encode(body), path)
        assert isinstance(prompt, Prompt)
        return make_facts(prompt, "m", session_id=session.encode())

    def plan(self, body: dict[str, Any], session: str, path: str = CHAT) -> Turn:
        facts, now_s = self.facts(body, session, path), time.perf_counter()
        held = self.router.index.match(facts.prefix, now_s)
        cached = {address: int(blocks * facts.block_tokens) for address, blocks in held.items()}
        move = self.planner.consider(facts, self.host, self.router.pool.endpoints, cached, now_s)
        assert isinstance(move, Move)
        assert move.how == "copy"
        return Turn(facts, msgspec.json.encode(body), move)

    async def copy(self, turn: Turn, path: str = CHAT) -> None:
        self.mover.offer(turn.move, turn.facts, path, turn.body)
        await self.idle()

    async def idle(self) -> None:
        await until(lambda: not self.mover.under_way)

    def lives_at(self, turn: Turn) -> str | None:
        return self.router.sessions.address_of(turn.move.session)

    def credited_blocks(self, turn: Turn) -> int:
        """Of the turn's prompt, that the index believes to be at the target."""
        return self.router.index.match(turn.facts.prefix, time.perf_counter()).get(self.target.address, 0)

    async def cached_share(self, engine: Endpoint, turn: Turn) -> float:
        async with httpx.AsyncClient(timeout=WITHIN_S) as client:
            answer = await client.post(f"http://{engine.address}{CHAT}", content=turn.body)
        usage = answer.json()["usage"]
        return float(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])


def conversation(session: str, number: int) -> dict[str, Any]:
    """The conversation up to a turn: some 3,000 tokens, and a few more with each turn."""
    messages = [{"role": "system", "content": f"{session} " + "the quick brown fox jumps over the lazy dog " * 330}]
    for n in range(number + 1):
        messages += [{"role": "user", "content": f"Question {n}?"}, {"role": "assistant", "content": f"Answer {n}."}]
    return {"model": "m", "messages": messages[:-1], "max_tokens": 1}
