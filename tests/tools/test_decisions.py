"""A log read again: as a trace, and as attempts."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from fairlead.decision_log import files
from fairlead.errors import UserError
from fairlead.tools import decisions as reader
from tests.decision_log.world import USUAL, decisions


def test_all_files_are_read_in_the_order_of_decisions(tmp_path: Path) -> None:
    for number in (2, 1):
        files.write(tmp_path, [tuple((USUAL | {"at_s": float(number)}).values())])
    assert reader.read_decisions(tmp_path)["at_s"].to_list() == [1.0, 2.0]
    assert reader.is_decision_log(tmp_path)


def test_a_folder_without_files_and_a_file_of_another_kind_are_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no decisions-\*.parquet in it"):
        reader.read_decisions(tmp_path)
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "decisions-1.parquet")
    with pytest.raises(UserError, match="it is not a file of a decision log"):
        reader.read_decisions(tmp_path)
    (tmp_path / "decisions-1.parquet").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be read"):
        reader.read_decisions(tmp_path)


def test_a_file_that_is_there_twice_is_read_once(tmp_path: Path) -> None:
    files.write(tmp_path, [tuple((USUAL | {"at_s": float(number)}).values()) for number in range(3)])
    [file] = tmp_path.iterdir()
    file.with_name("decisions-copy.parquet").write_bytes(file.read_bytes())
    assert reader.read_decisions(tmp_path)["at_s"].to_list() == [0.0, 1.0, 2.0]


def test_a_log_from_before_questions_were_named_is_read(tmp_path: Path) -> None:
    decisions({}).drop("question", "last").write_parquet(tmp_path / "decisions-1.parquet")
    assert reader.read_decisions(tmp_path).select("question", "last").row(0) == (None, None)


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
    with pytest.raises(UserError, match=r"observe\.answers_per_second"):
        reader.trace_rows(decisions({}), Path("log"))
