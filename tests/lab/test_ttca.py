"""The experiment's arithmetic: which questions are asked, what counts, and what the report and its figures say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.tools.bench.machine import Machine
from lab import words
from lab.ttca import figures, measure, report
from lab.ttca.learning import right_by_cell
from lab.ttca.measure import LENGTHS_TOKENS, POLICIES, Asked, Plan, Results, Try

PLAN = Plan(("vllm:good", "sglang:bad"), learnt_from=1, questions=1, repeats=2, seed=0)
MACHINE = Machine("2026-01-01", "abc", "a CPU", 2, "Linux", "3.11", "1.40", 0.1)


def asked(policy: str, repeat: int, language: str, length: int, *tries: Try) -> Asked:
    return Asked(policy, repeat, language, length, tries, 0)


@pytest.fixture
def results() -> Results:
    """`laar` and `fairlead` ask the good model at once; the others ask the bad one first."""
    right, wrong = Try("good", 100.0, True), Try("bad", 100.0, False)
    every = tuple(
        asked(policy, repeat, language, length, *((right,) if policy in measure.OURS else (wrong, right)))
        for repeat in range(PLAN.repeats)
        for policy in POLICIES
        for language in words.LANGUAGES
        for length in LENGTHS_TOKENS
    )
    shares = {
        "good": dict.fromkeys(words.LANGUAGES, [1.0] * 5),
        "bad": dict.fromkeys(words.LANGUAGES, [1.0] * 4 + [0.0]),
    }
    return Results("python -m lab.ttca", PLAN, MACHINE, 0.2, shares, {"good": 0.1, "bad": 0.1}, every)


def test_the_time_to_a_correct_answer_counts_the_wrong_ones_before_it() -> None:
    one = asked("laar", 0, "en", 64, Try("a", 30.0, False), Try("b", 12.0, True))
    assert (one.time_ms, one.right) == (42.0, True)


def test_the_halves_of_the_questions_have_no_dictionary_in_common_and_the_same_share_of_each_kind() -> None:
    first, second = measure.halves(PLAN, "first", 2), measure.halves(PLAN, "second 0", 2)
    assert not {question.prompt for question in first} & {question.prompt for question in second}
    kinds = [(question.language, question.length_tokens) for question in first]
    assert len(set(kinds)) == PLAN.cells
    assert {kinds.count(kind) for kind in kinds} == {2}


def test_models_differ_only_where_their_shares_lie_apart(results: Results) -> None:
    assert report.differing_cells(results) == {(language, LENGTHS_TOKENS[-1]) for language in words.LANGUAGES}


def test_the_report_says_by_how_much_the_time_fell_and_how_sure_that_is(results: Results) -> None:
    text = report.markdown(results)
    assert "| laar | least_request | -50% (-50% to -50%) | (-50% (-50% to -50%)) |" in text
    assert "| laar | 100% | 100% | 100% | 100% | 100% |" in text
    assert "| session_affinity | 0% | 100% | 100% | 100% | 100% |" in text


def test_the_report_says_what_each_model_ran_on_and_where_the_attempts_went(results: Results) -> None:
    text = report.markdown(results)
    assert "1 vLLM server (good) and 1 SGLang server (bad) on CPU" in text
    assert "| policy | vllm:good | sglang:bad |" in text
    assert "| laar | 100% | 0% |" in text
    assert "| session_affinity | 50% | 50% |" in text


def test_the_figures_are_drawn_from_whole_results(results: Results, tmp_path: Path) -> None:
    figures.write_figures(results, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"success.png", "improvement.png"}


def test_shares_of_the_first_half_are_by_what_was_asked(tmp_path: Path) -> None:
    table = tmp_path / "attempts.csv"
    rows = [f"m,ja,70,{right},5.0,{language},64" for language in words.LANGUAGES for right in (0, 1)]
    table.write_text("\n".join(["model,language,tokens,correct,ms,asked_language,asked_tokens", *rows]) + "\n")
    assert right_by_cell(table, (64,)) == {"m": {"en": [0.5], "ja": [0.5], "zh": [0.5]}}
