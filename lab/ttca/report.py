"""The result in Markdown, for people, and in JSON, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Final

import msgspec

from fairlead.tools.bench.machine import machine_facts
from fairlead.tools.bench.markdown import table
from fairlead.tools.demo.results import Improvement, QuestionResult, improvement
from fairlead.tools.demo.traffic import ASKERS, MAX_ATTEMPTS
from fairlead.tools.estimates import estimate
from lab import command, words
from lab.servers import SERVERS
from lab.ttca.measure import BASELINES, LENGTHS_TOKENS, OURS, POLICIES, Asked, Results, model_of

DIFFER_BY: Final = (
    0.3  # difference of the share right between best and worst model from which models count as different
)

_ATTEMPTS_SHOWN: Final = (1, 2, 3, 5, 10)

_LIMITS: Final = """\
- The models are toys: they look words up in a dictionary that is in the prompt, and do nothing else. That their \
accuracy falls with length and differs by script was not written down anywhere, it came out of training; how it falls \
in a large model is another matter. What is shown is that the machinery works on real engines and real mistakes: \
attempts recorded, fitted, routed by, retried.
- Prompts are 64 to 1,024 tokens and a request takes tens of milliseconds, most of it the engine's own fixed cost on a \
CPU. On a GPU with prompts of 64K tokens a wrong attempt costs thousands of times more, and prefill decides.
- All engines, Envoy, the sidecar and the askers share {cores} cores, so a policy that sends fewer requests makes each \
request faster, and anything else on the machine shows in the times (see the load averages).
- Answers are judged by the asker, who knows the right one. Without such a judge there is no time to correct answer.
- The capability table was fitted on questions of the same kind. Where traffic is of another kind, it has to be fitted \
on that."""


def write(results: Results, folder: Path) -> None:
    """ttca.json and ttca.md in `folder`, which is also printed."""
    (folder / "ttca.json").write_bytes(msgspec.json.encode(results) + b"\n")
    command.show(markdown(results), folder / "ttca.md")


def markdown(results: Results) -> str:
    plan, machine = results.plan, results.machine
    cells = differing_cells(results)
    facts = machine_facts(results.command, plan.seed, machine, results.load_average_after)
    asked = plan.questions * plan.cells
    parts = [
        f"# Time to correct answer on real engines\n\n{facts}",
        f"{_servers(plan.servers)} on CPU, one for each tiny model; `fairlead serve` "
        f"with the same configuration under every policy but for its name; a real Envoy; {ASKERS} questions at a time, "
        f"up to {MAX_ATTEMPTS} attempts, temperature 0. {plan.repeats} repeats of {asked} questions, evenly over "
        f"{len(words.LANGUAGES)} scripts and {len(LENGTHS_TOKENS)} lengths; every policy is asked the same ones, from "
        "empty caches, in an order of policies that changes with each repeat. Q and c(m) were fitted by "
        f"`fairlead fit` on {plan.learnt_from} other questions in each script and length.",
        "## All questions\n\n" + _summary(results.asked, plan.repeats),
        f"## Where models differ\n\nThe {len(cells)} of {plan.cells} combinations of script and length in which, on "
        f"the questions of the first half, the best model was right at least {DIFFER_BY:.0%} of the time more often "
        "than the worst.\n\n"
        + _summary([one for one in results.asked if (one.language, one.length_tokens) in cells], plan.repeats),
        "## Mean time to correct answer against others\n\nNegative is shorter. 95 % bootstrap interval over "
        "questions, all repeats together; where models differ, and in brackets over all questions.\n\n"
        + _improvements(results, cells),
        "## Where the attempts went\n\nShare of all attempts, by model and what it runs on.\n\n" + _went(results),
        "## Success by attempt\n\n" + _by_attempt(results) + "\n\n![Success against time](success.png)",
        f"## By script and length\n\n![Improvement by script and length](improvement.png)\n\n"
        f"Share right on the first half of the questions:\n\n{_accuracy(results)}",
        "## What it does not show\n\n" + _LIMITS.format(cores=machine.cores),
    ]
    return "\n\n".join(parts) + "\n"


def differing_cells(results: Results) -> set[tuple[str, int]]:
    """Script and length of those cells where the models' shares of right answers lie at least DIFFER_BY apart."""
    cells = set()
    for language in words.LANGUAGES:
        for index, length in enumerate(LENGTHS_TOKENS):
            shares = [by_language[language][index] for by_language in results.learnt_right.values()]
            if max(shares) - min(shares) >= DIFFER_BY:
                cells.add((language, length))
    return cells


def compared(ours: Sequence[Asked], theirs: Sequence[Asked]) -> Improvement:
    """By how much the mean time of `ours` is below that of `theirs`, which answer the same questions."""
    return improvement([_result(one) for one in ours], [_result(one) for one in theirs])


def _result(one: Asked) -> QuestionResult:
    return QuestionResult(one.length_tokens, one.time_ms, ())


def _summary(asked: Sequence[Asked], repeats: int) -> str:
    rows = []
    for policy in POLICIES:
        of_policy = [one for one in asked if one.policy == policy]
        by_repeat = [[one for one in of_policy if one.repeat == repeat] for repeat in range(repeats)]
        rows.append(
            (
                f"**{policy}**" if policy in OURS else policy,
                estimate([fmean(one.time_ms for one in part) for part in by_repeat]).text(0),
                f"{median(one.time_ms if one.right else float('inf') for one in of_policy):,.0f}",
                estimate([100 * fmean(one.tries[0].right for one in part) for part in by_repeat]).text(0),
                estimate([100 * fmean(one.right for one in part) for part in by_repeat]).text(0),
                f"{fmean(len(one.tries) for one in of_policy):.2f}",
                sum(one.faults for one in of_policy),
            )
        )
    heads = ("policy", "mean, ms", "median, ms", "right at once, %", "right in the end, %", "attempts", "faults")
    return table(heads, rows) + (
        f"\n\nMeans with 95 % intervals (Student's t over {repeats} repeats). A question that was never answered "
        "rightly counts in the mean with all its attempts, and in the median as endless."
    )


def _improvements(results: Results, cells: set[tuple[str, int]]) -> str:
    rows = []
    for ours in OURS:
        for other in (*BASELINES, *(policy for policy in OURS if policy != ours)):
            pairs = list(zip(results.of(ours), results.of(other), strict=True))
            within = [pair for pair in pairs if (pair[0].language, pair[0].length_tokens) in cells]
            differing = compared([mine for mine, _ in within], [theirs for _, theirs in within])
            everywhere = compared([mine for mine, _ in pairs], [theirs for _, theirs in pairs])
            rows.append((ours, other, _change(differing), f"({_change(everywhere)})"))
    return table(("policy", "against", "where models differ", "(all questions)"), rows)


def _change(found: Improvement) -> str:
    text = f"{-found.share:+.0%} ({-found.high:+.0%} to {-found.low:+.0%})"
    return text if found.beyond_chance else f"{text}, may be chance"


def _servers(servers: Sequence[str]) -> str:
    """`2 vLLM servers (heron, swift) and 2 SGLang servers (stork, wren)`."""
    said = []
    for kind in SERVERS:
        models = [model_of(server) for server in servers if server.startswith(f"{kind}:")]
        if models:
            plural = "s" if len(models) > 1 else ""
            said.append(f"{len(models)} {SERVERS[kind].contents.title} server{plural} ({', '.join(models)})")
    return " and ".join(said)


def _went(results: Results) -> str:
    rows = []
    for policy in POLICIES:
        tries = [one.model for asked in results.of(policy) for one in asked.tries]
        rows.append((policy, *[f"{tries.count(model_of(server)) / len(tries):.0%}" for server in results.plan.servers]))
    return table(("policy", *results.plan.servers), rows)


def _by_attempt(results: Results) -> str:
    heads = ("right within", *[f"{n} attempts" if n > 1 else "1 attempt" for n in _ATTEMPTS_SHOWN])
    rows = []
    for policy in POLICIES:
        of_policy = results.of(policy)
        shares = [fmean(one.right and len(one.tries) <= n for one in of_policy) for n in _ATTEMPTS_SHOWN]
        rows.append((policy, *[f"{share:.0%}" for share in shares]))
    return table(heads, rows)


def _accuracy(results: Results) -> str:
    heads = ("model", "script", *[f"{length:,} tokens" for length in LENGTHS_TOKENS])
    rows = [
        (model, language, *[f"{share:.0%}" for share in shares])
        for model, by_language in results.learnt_right.items()
        for language, shares in by_language.items()
    ]
    return table(heads, rows)
