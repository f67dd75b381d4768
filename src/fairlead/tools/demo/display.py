"""What the demo shows: a live picture of each phase, and the policies side by side at the end.

Rich draws it in place on a terminal; into a file or a pipe each picture is printed once, when its phase has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fairlead.tools.demo.results import Improvement, PolicySummary, QuestionResult, improvement

_REFRESHES_PER_SECOND = 8
_HOW_COUNTED = (
    "Means count a question that was never answered rightly up to its last attempt, so giving up early looks fast; "
    "medians count it as endless."
)


class Phase:
    """One phase of questions: its progress, where its requests went and why, and how long right answers took."""

    def __init__(self, title: str, total: int) -> None:
        self.title = title
        self.results: list[QuestionResult] = []
        self._progress = Progress(TextColumn("  "), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._progress.add_task("", total=total)

    def advance(self) -> None:
        self._progress.advance(self._task)

    def add(self, result: QuestionResult) -> None:
        self.results.append(result)
        self.advance()

    def __rich__(self) -> RenderableType:
        if not self.results:
            return Group(self._progress, "")
        return Group(self._progress, _where(self.results), _sentence(PolicySummary.of(self.results)), "")


@contextmanager
def shown(console: Console, phase: Phase) -> Iterator[Phase]:
    """Draw `phase` while the block runs, and leave its last picture on the screen."""
    console.print(f"[bold]{escape(phase.title)}[/]", highlight=False)
    with Live(phase, console=console, refresh_per_second=_REFRESHES_PER_SECOND):
        yield phase


def comparison(results: Mapping[str, Sequence[QuestionResult]], ours: str) -> RenderableType:
    """All policies in one table, and by how much `ours` shortened the time to a correct answer."""
    table = Table(title="The same questions under each policy", box=SIMPLE)
    table.add_column("policy", no_wrap=True)
    for heading in (
        "mean time to\nright answer",
        "median",
        "right at\nonce",
        "right in\nthe end",
        "attempts\neach",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for policy, of_policy in results.items():
        summary = PolicySummary.of(of_policy)
        table.add_row(
            policy,
            _ms(summary.mean_ms),
            _ms(summary.median_ms),
            f"{summary.first_attempt_success:.0%}",
            f"{summary.success:.0%}",
            f"{summary.attempts:.2f}",
            style="bold" if policy == ours else "",
        )
    others = [policy for policy in results if policy != ours]
    lines = [_improvement_sentence(ours, other, improvement(results[ours], results[other])) for other in others]
    return Group(table, _by_length(results), *lines, f"[dim]{_HOW_COUNTED}[/]")


def _improvement_sentence(ours: str, other: str, found: Improvement) -> str:
    word = "below" if found.share >= 0 else "ABOVE"
    share, low, high = abs(found.share), found.low, found.high
    if found.share < 0:
        low, high = -high, -low
    doubt = "" if found.beyond_chance else ": may be chance"
    return (
        f"[bold]{ours}[/]: time to correct answer [bold]{share:.1%} {word}[/] {other} "
        f"(95 % interval {low:.1%} to {high:.1%}{doubt})"
    )


def _by_length(results: Mapping[str, Sequence[QuestionResult]]) -> Table:
    table = Table(title="Mean time to right answer by prompt length in tokens", box=SIMPLE)
    table.add_column("policy", no_wrap=True)
    lengths = sorted({result.length_tokens for of_policy in results.values() for result in of_policy})
    for length in lengths:
        table.add_column(f"{length:,}", justify="right", no_wrap=True)
    for policy, of_policy in results.items():
        by_length = [[result for result in of_policy if result.length_tokens == length] for length in lengths]
        table.add_row(policy, *[_ms(PolicySummary.of(of_length).mean_ms) for of_length in by_length])
    return table


def _where(results: Sequence[QuestionResult]) -> Table:
    table = Table(box=SIMPLE)
    table.add_column("model", no_wrap=True)
    table.add_column("endpoint", no_wrap=True)
    for heading in ("requests", "right", "mean"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("chosen by")
    attempts = [attempt for result in results for attempt in result.attempts]
    for model, endpoint in sorted({(attempt.model, attempt.endpoint) for attempt in attempts}):
        here = [attempt for attempt in attempts if (attempt.model, attempt.endpoint) == (model, endpoint)]
        reasons = Counter(attempt.decision or "gateway alone" for attempt in here)
        table.add_row(
            escape(model),
            endpoint,
            str(len(here)),
            f"{sum(attempt.correct for attempt in here) / len(here):.0%}",
            _ms(sum(attempt.duration_ms for attempt in here) / len(here)),
            ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()),
        )
    return table


def _sentence(summary: PolicySummary) -> str:
    return (
        f"  Time to correct answer: mean [bold]{_ms(summary.mean_ms)}[/], median {_ms(summary.median_ms)}.\n"
        f"  Right at the first attempt {summary.first_attempt_success:.0%}, in the end {summary.success:.0%}; "
        f"{summary.attempts:.2f} attempts a question."
    )


def _ms(ms: float) -> str:
    return "never" if ms == inf else f"{ms:,.0f} ms"
