"""Overload, in simulated time: what stands before the router, on mixed traffic of chat and batch tenants.

    python benchmarks/overload.py TRACE... > benchmarks/results/overload.md

Half of the conversations are of two batch tenants (level -1), the others of four chat tenants (level 0). A request is
good if it was answered, chat within 5 s to its first token and batch within 60 s; good/s counts those whose answers
ended while requests still came, a second, so that what engines hold at the end helps no rule. All rules choose
endpoints by the same policy. Which conversation is whose is drawn anew with each seed; figures are averages over the
seeds, with the least and the greatest p95. `fairlead, by SLO` also has these times as objectives of its routes, with
`otherwise: refuse`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fairlead.admission.admission import Rules
from fairlead.admission.limits import BandRules, QueueRules
from fairlead.core.objective import Slo
from fairlead.policies import build_policy
from fairlead.statistics import quantile
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.claude_code import Sampling
from fairlead.tools.replay.gated import (
    FairleadGate,
    GatedSimulation,
    Gatekeeper,
    LlmDFlowControl,
    LlmDShedding,
    NoGate,
    StaticLimit,
    Tenancy,
)
from fairlead.tools.replay.policy_spec import faster_for, read_policy_spec
from fairlead.tools.replay.traces import read_trace
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World, alike

LOADS = (0.5, 0.7, 1.0, 1.3, 2.0)  # of what `least_request` serves
ENGINES = 4
WAIT_S = 60.0
CHAT_TTFT_MS, BATCH_TTFT_MS = 5000.0, 60_000.0
BEGIN_S = 180.0  # the 180 s before are those by which causes were found
SPAN_S = 180.0
# More of the others: `azure` has short prompts, and lasts four minutes at load 1; a session of `claude_code` is one
# conversation of some twenty requests, of which only 21 begin in 180 s.
SPANS_S = {"azure_llm_2023_conv": 1080.0, "claude_code": 360.0}
SEEDS = (1, 2, 3)
GateMaker = Callable[[GatedSimulation], Gatekeeper]
BANDS = {0: BandRules("chat", longest_wait_s=WAIT_S), -1: BandRules("batch", share=0.8, longest_wait_s=WAIT_S)}
RULES: dict[str, GateMaker] = {
    "no gate": NoGate,
    "static, 32 an engine": partial(StaticLimit, per_engine=32, longest_wait_s=WAIT_S),
    "static, 100 an engine": partial(StaticLimit, per_engine=100, longest_wait_s=WAIT_S),
    "llm-d, shedding": LlmDShedding,
    "llm-d, flow control": partial(LlmDFlowControl, longest_wait_s=WAIT_S),
    "fairlead": partial(FairleadGate, rules=Rules(QueueRules(bands=BANDS))),
    "fairlead, by SLO": partial(
        FairleadGate,
        rules=Rules(QueueRules(bands=BANDS)),
        slos={0: Slo(CHAT_TTFT_MS, refuses=True), -1: Slo(BATCH_TTFT_MS, refuses=True)},
    ),
}


class Figures(NamedTuple):
    good: float  # shares of all requests, also below
    ttft_p50_ms: float  # of chat
    ttft_p95_ms: float
    tokens_per_ms: float
    jain: float  # over chat tenants
    chat_refused: float
    batch_refused: float
    waited: float
    good_per_s: float


def one(world: World, workload: Workload, gate: GateMaker, seed: int) -> Figures:
    tenancy = Tenancy(seed=seed)
    rows: list[AttemptRecord] = []
    simulation = GatedSimulation(
        world, workload, build_policy("fairlead", {}), gate, tenancy, seed=seed, sink=rows.append
    )
    simulation.run()
    until_ms = workload.conversations[-1].start_ms
    chat: list[float] = []
    good = good_ended = tokens = chat_refused = batch_refused = 0
    served = [0.0] * tenancy.tenants
    for row in rows:
        tenant = tenancy.tenant(row.conversation)
        is_chat = tenancy.level(tenant) == 0
        if row.why == "refused":
            chat_refused += is_chat
            batch_refused += not is_chat
            continue
        if is_chat:
            chat.append(row.first_token_ms)
        is_good = row.first_token_ms <= (CHAT_TTFT_MS if is_chat else BATCH_TTFT_MS)
        good += is_good
        if row.sent_ms + row.total_ms <= until_ms:
            served[tenant] += row.prompt_tokens + row.output_tokens
            tokens += row.prompt_tokens + row.output_tokens
            good_ended += is_good
    chats, count = served[tenancy.batch :], len(rows)
    jain = sum(chats) ** 2 / (len(chats) * sum(each * each for each in chats)) if any(chats) else 0.0
    return Figures(
        good / count,
        quantile(chat, 0.5),
        quantile(chat, 0.95),
        tokens / until_ms,
        jain,
        chat_refused / count,
        batch_refused / count,
        simulation.waited / count,
        good_ended / until_ms * 1e3,
    )


def window(trace: str) -> tuple[Workload, str]:
    """What is replayed of a trace, at its own speed, and a title for it."""
    name = Path(trace).name.split(".")[0]
    until_s = BEGIN_S + SPANS_S.get(name, SPAN_S)
    usual = read_trace(Path(trace), Sampling(), 0).between(BEGIN_S, until_s)
    return usual, (f"{name}: {BEGIN_S:g} to {until_s:g} s, {len(usual.conversations)} conversations, {ENGINES} engines")


def shown(runs: list[Figures]) -> str:
    p95 = [run.ttft_p95_ms for run in runs]
    good, p50_ms, p95_ms, tokens, jain, chat_refused, batch_refused, waited, good_per_s = (
        fmean(values) for values in zip(*runs, strict=True)
    )
    return (
        f"{good:.1%} | {good_per_s:.2f} | {p50_ms:,.0f} | {p95_ms:,.0f} ({min(p95):,.0f} to {max(p95):,.0f}) | "
        f"{tokens:,.1f} | {jain:.3f} | {chat_refused:.1%} | {batch_refused:.1%} | {waited:.1%}"
    )


def main(traces: list[str]) -> None:
    print("# Overload: what stands before the router\n")
    print((__doc__ or "").split("\n\n", 2)[2])
    for trace in traces:
        world, (usual, title) = alike(ENGINES), window(trace)
        print(f"\n## {title}")
        print(f"\nSeeds {', '.join(map(str, SEEDS))}.\n")
        print(
            "| load | rule | good | good/s | chat TTFT p50 ms | p95 ms | tokens/ms | Jain, chat | "
            "chat refused | batch refused | waited |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for load in LOADS:
            workload = usual.faster(faster_for(load, world, usual, read_policy_spec("least_request")))
            for rule, gate in RULES.items():
                runs = [one(world, workload, gate, seed) for seed in SEEDS]
                print(f"| {load:g} | {rule} | {shown(runs)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="as `fairlead replay` reads them")
    main(parser.parse_args().traces)
