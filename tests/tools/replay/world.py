"""Small traffic and small worlds for replays."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.core.facts import session_key
from fairlead.core.policy import Policy
from fairlead.policies import build_policy
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Conversation, Turn, Workload
from fairlead.tools.replay.world import World, alike
from fairlead.tools.simulate.parameters import EngineParameters

BLOCK = 16
ENGINE = EngineParameters(
    prefill_ms_per_token=0.5,
    decode_ms_per_step=5.0,
    decode_ms_per_sequence=0.5,
    step_overhead_ms=1.0,
    token_budget=256,
    max_num_seqs=8,
    max_model_len=4096,
)


def small_world(engines: int = 3, kv_tokens: int = 4096) -> World:
    return alike(engines, ENGINE, kv_tokens)


def turn(prompt_tokens: int, output_tokens: int = 4, *, of: int = 0, think_ms: float = 0.0) -> Turn:
    """`of` numbers whose prompt it is: turns of one number share all that they can."""
    return Turn(prompt_tokens, output_tokens, ((of * 1_000_000, prompt_tokens // BLOCK),), think_ms=think_ms)


def workload(*conversations: Conversation) -> Workload:
    return Workload("test", conversations, BLOCK)


def talk(start_ms: float, *turns: Turn, session: str | None = None) -> Conversation:
    return Conversation(start_ms, turns, session_key(session.encode()) if session else None)


def run(
    traffic: Workload, policy: str | Policy = "fairlead", world: World | None = None, seed: int = 0
) -> tuple[list[AttemptRecord], Simulation]:
    answers: list[AttemptRecord] = []
    rule = build_policy(policy, {}) if isinstance(policy, str) else policy
    simulation = Simulation(world or small_world(), traffic, rule, seed=seed, sink=answers.append)
    simulation.run()
    return answers, simulation


def reported(answers: Sequence[AttemptRecord]) -> list[tuple[int, int, int]]:
    return [(each.conversation, each.turn, each.attempt) for each in answers]
