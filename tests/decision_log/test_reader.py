"""A log read again: as a trace, and as attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fairlead.decision_log import files, reader
from fairlead.decision_log.files import SCHEMA
from fairlead.errors import UserError

USUAL: dict[str, Any] = {
    "at_s": 0.0, "session": None, "request": "r", "prompt": "p", "asked": "auto", "attempted": [], "language": "en",
    "bucket": "4K", "estimated_tokens": 1000, "prompt_tokens": 1000, "blocks": [[0, 2]], "block_tokens": 500.0,
    "model": "small", "endpoint": "10.0.0.1:1", "decision": "cost", "migration": None, "considered": 2,
    "expected_tokens": 0, "queued_tokens": 0, "rtt_ms": 1.0, "cost_ms": 100.0, "success_probability": 1.0,
    "code": 200, "total_ms": 1000.0,
    "first_token_ms": None, "cached_tokens": None, "output_tokens": None,
}  # fmt: skip


def decisions(*rows: dict[str, Any]) -> pl.DataFrame:
    numbered = [{"at_s": float(number)} | row for number, row in enumerate(rows)]
    return pl.DataFrame([USUAL | row for row in numbered], schema=SCHEMA)


def judged(*rows: dict[str, Any], checked: bool = False) -> tuple[list[tuple[str, bool]], int]:
    found, unknown = reader.attempts(decisions(*rows), checked=checked)
    return list(found.select("model", "correct").iter_rows()), unknown


def test_all_files_are_read_in_the_order_of_decisions(tmp_path: Path) -> None:
    for number in (2, 1):
        files.write(tmp_path, [tuple((USUAL | {"at_s": float(number)}).values())])
    assert reader.read_decisions(tmp_path)["at_s"].to_list() == [1.0, 2.0]
    assert reader.is_decision_log(tmp_path)


def test_a_folder_without_files_and_a_file_of_another_kind_are_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no decisions-\*.parquet in it"):
        reader.read_decisions(tmp_path)
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "decisions-1.parquet")
    with pytest.raises(UserError, match="it is no file of a decision log"):
        reader.read_decisions(tmp_path)
    (tmp_path / "decisions-1.parquet").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be read"):
        reader.read_decisions(tmp_path)


def test_an_answer_was_wrong_when_its_question_came_again_with_its_model_among_the_attempted() -> None:
    assert judged({}, {"model": "large", "attempted": ["small"]}) == ([("small", False), ("large", True)], 0)


def test_of_an_answer_that_was_never_asked_for_again_nothing_is_known() -> None:
    assert judged({}) == ([], 1)


def test_where_all_answers_are_checked_it_was_right() -> None:
    assert judged({}, checked=True) == ([("small", True)], 0)


def test_a_session_that_asks_again_when_it_must_was_content_otherwise() -> None:
    rows = (
        {"session": "s", "prompt": "1"},
        {"session": "s", "prompt": "2"},
        {"session": "s", "prompt": "2", "model": "large", "attempted": ["small"]},
        {"session": "t", "prompt": "1"},
    )
    assert judged(*rows) == ([("small", True), ("small", False), ("large", True)], 1)


def test_the_same_prompt_of_two_sessions_is_two_questions() -> None:
    rows = ({"session": "s"}, {"session": "t", "model": "large", "attempted": ["small"]})
    assert judged(*rows) == ([("large", True)], 1)


def test_of_a_second_try_of_the_same_model_nothing_is_known() -> None:
    rows: tuple[dict[str, Any], ...] = ({}, {"attempted": ["small"]})
    assert judged(*rows) == ([("small", False)], 1)


def test_an_engines_failure_is_no_answer() -> None:
    assert judged({"code": 503}, {"model": "large", "attempted": ["small"]}) == ([("large", True)], 0)


def test_a_trace_has_first_tries_only_and_lengths_that_are_not_known_from_those_that_are() -> None:
    log = decisions(
        {"output_tokens": 10},
        {"output_tokens": 30},
        {},
        {},
        {},
        {"model": "large", "attempted": ["small"]},
        {"code": 499},
    )
    trace, notes = reader.trace_rows(log, Path("log"))
    assert trace["output_tokens"].to_list() == [10, 30, 10, 30, 10]
    assert set(trace["model"]) == {"auto"}
    assert "5 of 7 requests" in notes[0]


def test_a_request_after_its_session_s_last_answer_waits_for_it_and_others_come_at_their_time() -> None:
    log = decisions(
        {"session": "s", "at_s": 0.0, "total_ms": 2000.0, "output_tokens": 1},
        {"session": "t", "at_s": 1.0, "output_tokens": 1},
        {"session": None, "at_s": 2.0, "output_tokens": 1},
        {"session": "s", "at_s": 5.0, "output_tokens": 1},
        {"session": "s", "at_s": 5.5, "output_tokens": 1},  # a second one beside it
        {"session": "s", "at_s": 2000.0, "output_tokens": 1},
    )
    trace, notes = reader.trace_rows(log, Path("log"))
    assert trace["think_s"].to_list() == [None, None, None, 3.0, None, None]
    assert trace["at_s"].to_list() == [0.0, 1.0, 2.0, None, 5.5, 2000.0]
    assert "1 requests wait" in notes[2]


def test_a_session_whose_first_request_failed_begins_with_the_next() -> None:
    log = decisions({"session": "s", "at_s": 0.0, "code": 503}, {"session": "s", "at_s": 5.0, "output_tokens": 1})
    trace, _ = reader.trace_rows(log, Path("log"))
    assert (trace["at_s"].to_list(), trace["think_s"].to_list()) == ([5.0], [None])


def test_blocks_that_cannot_be_those_of_the_prompt_are_left_out() -> None:
    log = decisions({"output_tokens": 1}, {"output_tokens": 1, "prompt_tokens": 9000})
    trace, _ = reader.trace_rows(log, Path("log"))
    assert trace["blocks"].to_list() == [[[0, 2]], None]
    assert set(trace["block_tokens"]) == {500}


def test_a_log_that_knows_no_answers_length_says_what_to_set() -> None:
    with pytest.raises(UserError, match=r"observe\.messages_per_second"):
        reader.trace_rows(decisions({}), Path("log"))
