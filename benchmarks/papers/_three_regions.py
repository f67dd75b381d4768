"""The worlds and the traffic on which tuners of weights are compared (`tuner.py`), and distorted copies of a world."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import msgspec

from fairlead.core.facts import session_key
from fairlead.core.learning import Learner
from fairlead.core.observation import Observation as Seen
from fairlead.core.pool import Pool
from fairlead.tools.replay.network import constant, drawn
from fairlead.tools.replay.workload import Conversation, Turn, Workload
from fairlead.tools.replay.world import EngineSpec, Observation, World
from fairlead.tools.simulate.parameters import EngineParameters

BLOCK_TOKENS = 128
REGIONS = {"ashburn": (37.0, 8.0), "frankfurt": (279.0, 30.0), "seoul": (456.0, 120.0)}  # GORGO, figure 1; spreads ours
PREFILL_MS_PER_TOKEN, DECODE_MS_PER_STEP, DECODE_MS_PER_SEQUENCE = 0.1, 10.0, 0.3
SPREAD = 0.3  # of the logarithm of each, from seed to seed
KV_TOKENS = 600_000
WRONG = 0.3  # of the logarithm of each constant, in a distorted copy


class NoLearner(Learner):
    """`gorgo` uses nothing that is learned: without learning, results are bit-identical in a quarter of the time."""

    def observe(self, seen: Seen, pool: Pool) -> None: ...


def three_regions(seed: int) -> World:
    rng = Random(f"regions {seed}")
    engine = EngineParameters(
        prefill_ms_per_token=PREFILL_MS_PER_TOKEN * rng.lognormvariate(0.0, SPREAD),
        decode_ms_per_step=DECODE_MS_PER_STEP * rng.lognormvariate(0.0, SPREAD),
        decode_ms_per_sequence=DECODE_MS_PER_SEQUENCE * rng.lognormvariate(0.0, SPREAD),
    )
    return World(
        tuple(
            EngineSpec(f"10.0.0.{number}:8000", region=region, engine=engine, kv_tokens=KV_TOKENS)
            for number, region in enumerate(REGIONS, start=1)
        ),
        regions={name: drawn(mean, deviation, rng) for name, (mean, deviation) in REGIONS.items()},
        # Every first token is observed, as the published tuner needs. No policy here uses engine reports.
        observation=Observation(answers_per_second=1e9, messages_per_second=1e9, scrape_s=30.0),
    )


def sessions(name: str, requests: int) -> Workload:
    """Growing conversations that repeat earlier turns, of some 15,000 tokens on average; the rate is set later."""
    rng = Random(name)
    conversations: list[Conversation] = []
    now_ms, total, number = 0.0, 0, 0
    while total < requests:
        number += 1
        now_ms += rng.expovariate(1 / 1000.0)
        tokens = int(rng.lognormvariate(8.6, 0.7)) + 500
        turns = []
        for turn in range(min(1 + int(rng.expovariate(1 / 7.0)), requests - total)):
            answer = min(1000, 1 + int(rng.lognormvariate(5.0, 0.8)))
            runs = ((number << 20, tokens // BLOCK_TOKENS),)
            think_ms = 1e3 * rng.expovariate(1 / 15.0) if turn else 0.0
            turns.append(Turn(tokens, answer, runs, think_ms))
            tokens += answer + int(rng.lognormvariate(7.0, 0.9))
            if tokens > 60_000:
                break
        total += len(turns)
        key = session_key(f"{name} {number}".encode())
        conversations.append(Conversation(now_ms, tuple(turns), key, sum(turn.think_ms for turn in turns)))
    return Workload(name, tuple(conversations), BLOCK_TOKENS)


def wrong(world: World, rng: Random) -> World:
    """A distorted copy of a world: each constant, round trip and cache size is multiplied by its own random factor."""
    factors = {name: rng.lognormvariate(0.0, WRONG) for name in ("prefill", "step", "sequence", "kv")}

    def mistaken(spec: EngineSpec) -> EngineSpec:
        engine = replace(
            spec.engine,
            prefill_ms_per_token=spec.engine.prefill_ms_per_token * factors["prefill"],
            decode_ms_per_step=spec.engine.decode_ms_per_step * factors["step"],
            decode_ms_per_sequence=spec.engine.decode_ms_per_sequence * factors["sequence"],
        )
        return msgspec.structs.replace(spec, engine=engine, kv_tokens=int(spec.kv_tokens * factors["kv"]))

    regions = {
        name: constant(rtt.at(0.0) * rng.lognormvariate(0.0, WRONG)) for name, rtt in sorted(world.regions.items())
    }
    return msgspec.structs.replace(world, endpoints=tuple(map(mistaken, world.endpoints)), regions=regions)
