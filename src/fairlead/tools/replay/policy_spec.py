"""Policy specs of a replay, and scaling traffic to a load.

`name`, `name:key=value:key=value`, and either with `@30s` after it if engine reports are read only that often, as in
GORGO's experiment: `least_load@30s`. With `+copy`, `+pull` or `+recompute` after the policy, sessions leave hot
endpoints in that way, by the rules that may follow: `ear+pull:hot_tokens=8000:cool_down_s=30`.

Load is given as a share of what the best of some reference policies can serve: the rate at which answers end if all
conversations of the trace start at once. A policy that reuses more than they do can serve more than that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import msgspec

from fairlead.core.migration import Rules
from fairlead.core.policy import Policy
from fairlead.errors import UserError
from fairlead.policies import build_policy
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.moving import CONNECTORS, Moving, MovingSimulation
from fairlead.tools.replay.prefill_decode import PrefillDecodeSimulation
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Conversation, Workload, cut_runs
from fairlead.tools.replay.world import World

REFERENCE: Final = "least_request"
_LATE: Final = re.compile(r"^(.*)@([0-9.]+)s$")
_ROUNDS: Final = 4  # of full batches: a trace that fits into one would be answered at once, and show nothing
_MOST_COPIES: Final = 1000
_IDS: Final = 1 << 49  # offset between copies; above the ids that readers assign
_MIDDLE: Final = (0.1, 0.7)  # of the answers, by their end: before, caches fill; after, engines run idle


class PolicySpec(msgspec.Struct, frozen=True):
    """One policy with its parameters; `text` is how the user wrote it, and its name in reports."""

    text: str
    name: str
    parameters: dict[str, Any]
    scrape_s: float | None  # if it differs from the world's
    moving: Moving | None = None

    def policy(self) -> Policy:
        return build_policy(self.name, self.parameters)

    def simulation(
        self,
        world: World,
        workload: Workload,
        seed: int,
        sink: Callable[[AttemptRecord], None],
        progress: Callable[[int], None] | None = None,
    ) -> Simulation:
        """A run of this policy in `world` as it sees it."""
        seen, policy = self.world(world), self.policy()
        if self.moving is None:
            kind = PrefillDecodeSimulation if seen.has_roles else Simulation
            return kind(seen, workload, policy, seed=seed, sink=sink, progress=progress)
        return MovingSimulation(seen, workload, policy, self.moving, seed=seed, sink=sink, progress=progress)

    def world(self, world: World) -> World:
        """`world` with this spec's scrape interval."""
        if self.scrape_s is None:
            return world
        observation = msgspec.structs.replace(world.observation, scrape_s=self.scrape_s)
        return msgspec.structs.replace(world, observation=observation)


def read_policy_spec(text: str) -> PolicySpec:
    """Raises UserError for a policy or a parameter that does not exist."""
    late = _LATE.match(text)
    rule, scrape_s = (late.group(1), float(late.group(2))) if late else (text, None)
    policy, plus, moving = rule.partition("+")
    name, parameters = _settings(policy, text)
    if scrape_s == 0:
        raise UserError(f'policy "{text}": reports cannot be read every 0 s; write @0.25s or leave it out')
    try:
        build_policy(name, parameters)
    except ValueError as error:
        raise UserError(f'policy "{text}": {error}') from None
    return PolicySpec(text, name, parameters, scrape_s, _moving(moving, text) if plus else None)


def _at_once(world: World, workload: Workload) -> int:
    """How many requests the engines can have in their batches, by the mean prompt."""
    tokens = sum(turn.prompt_tokens for each in workload.conversations for turn in each.turns) // workload.requests
    return sum(min(spec.engine.max_num_seqs, spec.kv_tokens // max(1, tokens)) for spec in world.endpoints)


def _copy(conversation: Conversation, number: int) -> Conversation:
    """A copy that starts at 0 and has separate blocks, so that copies share nothing with each other."""
    turns = [
        msgspec.structs.replace(turn, runs=cut_runs(turn.runs, turn.prompt_tokens, number * _IDS))
        for turn in (conversation.turns if number else ())
    ]
    return msgspec.structs.replace(conversation, start_ms=0.0, turns=tuple(turns) or conversation.turns)


def _settings(text: str, whole: str) -> tuple[str, dict[str, Any]]:
    name, *settings = text.split(":")
    parameters: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f'policy "{whole}": "{setting}" is not key=value')
        parameters[key] = _value(value)
    return name, parameters


def _moving(text: str, whole: str) -> Moving:
    how, rules = _settings(text, whole)
    if how not in CONNECTORS:
        raise UserError(f'policy "{whole}": "+{how}" is not a way to move; write +{", +".join(CONNECTORS)}')
    unknown = sorted(rules.keys() - set(Rules.__struct_fields__))
    if unknown:
        known = ", ".join(Rules.__struct_fields__)
        raise UserError(f'policy "{whole}": no rule for moving is called "{unknown[0]}"; known names: {known}')
    try:
        return Moving(how, msgspec.convert(rules, Rules))
    except msgspec.ValidationError as error:
        raise UserError(f'policy "{whole}": {error}') from None


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def faster_for(
    load: float,
    world: World,
    workload: Workload,
    reference: PolicySpec,
    progress: Callable[[int], None] | None = None,
) -> float:
    """The factor by which arrivals must be sped up to reach `load` times the rate that `reference` can serve."""
    span_ms = workload.conversations[-1].start_ms - workload.conversations[0].start_ms
    if span_ms <= 0:
        raise UserError(f"{workload.name}: all requests start at once, so no load can be set; give no load")
    return load * capacity_per_s(world, workload, reference, progress) / (workload.requests / span_ms * 1e3)


def capacity_requests(world: World, workload: Workload) -> int:
    """How many requests `capacity_per_s` runs."""
    return workload.requests * _copies(world, workload)


def _copies(world: World, workload: Workload) -> int:
    return min(-(-_ROUNDS * _at_once(world, workload) // workload.requests), _MOST_COPIES)


def capacity_per_s(
    world: World, workload: Workload, reference: PolicySpec, progress: Callable[[int], None] | None = None
) -> float:
    """Requests a second that the world answers under `reference` if it is never idle."""
    copies = _copies(world, workload)
    at_once = msgspec.structs.replace(
        workload, conversations=tuple(_copy(each, n) for n in range(copies) for each in workload.conversations)
    )
    ends_ms: list[float] = []

    def sink(answer: AttemptRecord) -> None:
        ends_ms.append(answer.sent_ms + answer.total_ms)

    reference.simulation(world, at_once, 0, sink, progress).run()
    ends_ms.sort()
    first, last = (int(share * (len(ends_ms) - 1)) for share in _MIDDLE)
    took_ms = ends_ms[last] - ends_ms[first]
    if last - first < 1 or took_ms <= 0:  # a handful of requests
        took_ms, first, last = max(median(ends_ms), 1e-3), 0, max(1, len(ends_ms) // 2)
    return (last - first) / took_ms * 1e3
