"""README and the pages for people tell the study of recorded traffic as its own page does."""

from __future__ import annotations

import math
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUDY = (ROOT / "benchmarks/results/papers/traffic.md").read_text(encoding="utf-8")
DRAWN = (ROOT / "benchmarks/results/papers/drawn.md").read_text(encoding="utf-8")
OURS = "fairlead, weights of the other traces"


def words_of(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def told(page: str, sentence: str) -> list[int]:
    """The numbers in the one place of the page where the sentence is; `#` stands for each."""
    (found,) = re.findall(re.escape(sentence).replace(r"\#", r"(\d+)"), words_of(page))
    return [int(number) for number in (found if isinstance(found, tuple) else (found,))]


def ratio(worlds: str, policy: str = OURS) -> tuple[int, float]:
    """Columns and geometric mean, of a row that begins so."""
    (row,) = re.findall(rf"^\| {re.escape(worlds)}`{re.escape(policy)}` \| (\d+) \| ([\d.]+) \|", STUDY, re.MULTILINE)
    return int(row[0]), float(row[1])


def behind(worlds: str, policy: str = OURS) -> int:
    return round((ratio(worlds, policy)[1] - 1) * 100)


def behind_in_all_worlds(time: str) -> int:
    rows = [ratio(f"{worlds}: {time} | ") for worlds in ("plain", "other worlds")]
    logarithms = sum(columns * math.log(mean) for columns, mean in rows)
    return round((math.exp(logarithms / sum(columns for columns, _ in rows)) - 1) * 100)


def test_how_far_it_is_from_the_best_rule_of_each_column() -> None:
    expected = [-behind_in_all_worlds("E2E mean"), -behind_in_all_worlds("E2E p95"), behind_in_all_worlds("TTFT p95")]
    sentence = "answers end # % sooner on average and # % at p95"
    assert told("README.md", f"{sentence}; **first tokens (p95) come # % later**") == expected
    assert told("docs/results.md", f"{sentence}, **first tokens come # % later**") == expected


def test_how_far_single_policies_are() -> None:
    expected = [behind("", policy) for policy in (OURS, "llm_d", "unified")]
    of_others = "llm-d's default and `unified` of EAR's prototype, are # and # % behind"
    assert told("README.md", f"# % behind the best of each; the next ones, {of_others}") == expected
    assert told("docs/results.md", "# % behind the best of each column, llm-d's default #, `unified` #") == expected


def test_how_far_it_is_where_all_assumptions_are_wrong() -> None:
    expected = [behind("only worst | ")]
    assert told("README.md", "send unseen, it is # % behind the best rule of each column") == expected
    assert told("docs/results.md", "# % where all of it comes together ([more]") == expected


def drawn(policy: str) -> list[float]:
    """Over the best of all others: of all columns, TTFT p95, E2E p95, E2E mean; of all worlds."""
    row = next(line for line in DRAWN.splitlines() if line.startswith(f"| `{policy}` |"))
    return [float(cell) for cell in row.split("|")[2:6]]


def test_how_far_it_is_on_what_was_drawn_at_random() -> None:
    _, first, last, mean = (round((each - 1) * 100) for each in drawn("fairlead"))
    sentence = "mean time to the end # % shorter, its p95 # % longer; **p95 to the first token # % longer**"
    assert told("README.md", sentence) == told("docs/results.md", sentence) == [-mean, last, first]


def test_how_far_the_next_policies_are_on_what_was_drawn_at_random() -> None:
    ours, one, other = (round((drawn(p)[0] - 1) * 100) for p in ("fairlead", "lmetric", "unified"))
    sentence = "# % behind the best of the others; `lmetric` and `unified`, the next rules, are # and # %"
    assert told("README.md", sentence) == [ours, one, other]
    ranked = [row.split("`")[1] for row in DRAWN.splitlines() if row.startswith("| `")]
    assert ranked[:3] == ["fairlead", "lmetric", "unified"]


def held_out(world: str) -> tuple[float, float]:
    """`fairlead` over the rule that was best on other seeds, and that rule over the best."""
    page = (ROOT / "benchmarks/results/papers/held_out.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(world)} \| \d+ \| ([\d.]+) \| ([\d.]+) \|", page, re.MULTILINE)
    return float(row[0]), float(row[1])


def test_how_far_it_is_from_the_rule_that_was_best_on_other_seeds() -> None:
    times = [held_out(f"plain: {time}")[0] for time in ("TTFT p95", "E2E p95", "E2E mean")]
    first, last, mean = times
    words = words_of("docs/results.md")
    assert f"`fairlead` takes {held_out('plain')[0]:.3f} of its time in the plain world" in words
    assert f"(first tokens {first:.3f}, p95 to the end {last:.3f}, mean {mean:.3f})" in words
    assert f"that rule takes {held_out('plain')[1]:.3f} of the best's" in words
    assert f"it is {held_out('drifting')[0]:.3f} against the rule found on other seeds" in words
    worlds = [held_out(world)[0] for world in ("mixed", "unlabelled", "stale", "noisy", "worst")]
    told_of = (
        "`mixed` is {:.3f}, `unlabelled` {:.3f}, `stale` {:.3f}, `noisy` {:.3f} and `worst` {:.3f} against the rule"
    )
    assert told_of.format(*worlds) in words
    assert f"`strangers`, run later, is {held_out('strangers')[0]:.3f}" in words
