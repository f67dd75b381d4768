"""Traces in all their forms, and what is said of those that cannot be replayed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.facts import session_key
from fairlead.errors import UserError
from fairlead.tools.replay import traces
from fairlead.tools.replay.claude_code import Sampling
from fairlead.tools.replay.run import Traffic, workload_of
from fairlead.tools.replay.traces import read_trace
from fairlead.tools.replay.workload import Workload, as_runs, cut_runs

GOOD: dict[str, Any] = {"at_s": 0, "prompt_tokens": 1000, "output_tokens": 10}


def jsonl(folder: Path, *rows: object, name: str = "trace.jsonl") -> Path:
    path = folder / name
    text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def moon(timestamp: int, prompt_tokens: int, ids: list[int]) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": prompt_tokens, "output_length": 5, "hash_ids": ids}


def agent(session: str, turn: int, t: float, prompt_tokens: int, h: list[list[int]], **more: Any) -> dict[str, Any]:
    return {"session": session, "i": turn, "t": t, "in": prompt_tokens, "out": 9, "think": 2.0, "h": h, **more}


def test_of_a_trace_larger_than_memory_the_first_requests_are_read_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MOST_REQUESTS", 3)
    rows = [GOOD | {"at_s": at_s} for at_s in range(4)]
    read = read_trace(jsonl(tmp_path, *rows))
    assert (read.requests, read.notes) == (3, (traces.ONLY_THE_FIRST,))
    assert read_trace(jsonl(tmp_path, *rows[:3])).notes == ()
    with pytest.raises(UserError, match=r"nothing starts from 3 s to 9 s; only its first .* requests are read"):
        workload_of(Traffic(str(jsonl(tmp_path, *rows)), from_s=3, to_s=9), seed=0)


# ---- tables of one's own --------------------------------------------------------------------------------------------


def test_rows_with_a_time_come_at_that_time_and_the_first_is_time_0(tmp_path: Path) -> None:
    read = read_trace(jsonl(tmp_path, GOOD | {"at_s": 5}, GOOD | {"at_s": 5.5, "language": "ja", "model": "x"}))
    assert [each.start_ms for each in read.conversations] == [0.0, 500.0]
    assert [each.turns[0].language for each in read.conversations] == ["en", "ja"]
    assert read.conversations[1].turns[0].model == "x"
    assert read.conversations[0].turns[0].blocks() == ()


def test_rows_with_a_think_time_follow_the_session_s_row_before(tmp_path: Path) -> None:
    first = GOOD | {"session": "s"}
    then = {"think_s": 2, "prompt_tokens": 1500, "output_tokens": 7, "session": "s"}
    (conversation,) = read_trace(jsonl(tmp_path, first, then)).conversations
    assert [each.think_ms for each in conversation.turns] == [0.0, 2000.0]
    assert conversation.session == session_key(b"s")
    assert conversation.recorded_ms == 2000.0


def test_a_session_s_growing_prompt_repeats_the_one_before_and_a_shorter_one_does_not(tmp_path: Path) -> None:
    rows = [GOOD | {"session": "s", "at_s": n, "prompt_tokens": tokens} for n, tokens in enumerate((600, 1200, 300))]
    first, longer, compacted = (each.turns[0].blocks() for each in read_trace(jsonl(tmp_path, *rows)).conversations)
    assert longer[: len(first)] == first
    assert (len(first), len(longer), len(compacted)) == (4, 9, 2)
    assert not set(compacted) & set(longer)


def test_blocks_may_be_named_one_by_one_or_in_rows(tmp_path: Path) -> None:
    rows = [GOOD | {"block_tokens": 100, "blocks": blocks} for blocks in ([[7, 10]], [*range(7, 17)])]
    one, other = read_trace(jsonl(tmp_path, *rows)).conversations
    assert one.turns[0].blocks() == other.turns[0].blocks() == tuple(range(7, 17))


def test_a_csv_reads_as_json_lines_do(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at_s,think_s,session,prompt_tokens,output_tokens\n0,,s,1000,10\n,1.5,s,1100,20\n3,,,50,5\n")
    rows = [
        GOOD | {"session": "s"},
        {"think_s": 1.5, "session": "s", "prompt_tokens": 1100, "output_tokens": 20},
        {"at_s": 3, "prompt_tokens": 50, "output_tokens": 5},
    ]
    assert read_trace(path).conversations == read_trace(jsonl(tmp_path, *rows)).conversations


@pytest.mark.parametrize(
    "written",
    [
        b"\xef\xbb\xbfat_s,prompt_tokens,output_tokens\r\n0,1000,10\r\n",
        b"at_s, prompt_tokens, output_tokens\n0, 1000, 10\n",
    ],
    ids=["by a spreadsheet, with a byte order mark", "by hand, with spaces"],
)
def test_a_csv_reads_the_same_however_it_was_written(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(written)
    assert read_trace(path).conversations == read_trace(jsonl(tmp_path, GOOD)).conversations


def test_json_lines_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = jsonl(tmp_path, "\ufeff", GOOD)
    assert read_trace(path).conversations == read_trace(jsonl(tmp_path, GOOD, name="plain.jsonl")).conversations


@pytest.mark.parametrize(
    ("rows", "line", "why"),
    [
        ([GOOD, {"at_s": 1, "output_tokens": 1}], 2, "prompt_tokens is missing"),
        ([GOOD | {"prompt_tokens": 0}], 1, "prompt_tokens is 0; it must be at least 1"),
        ([GOOD | {"output_tokens": 0}], 1, "output_tokens is 0; it must be at least 1"),
        ([GOOD | {"output_tokens": 1.5}], 1, "write a whole number of tokens"),
        ([GOOD | {"prompt_tokens": "many"}], 1, 'prompt_tokens: "many" is not a number'),
        ([GOOD | {"prompt_tokens": True}], 1, "prompt_tokens: true is not a number"),
        ([GOOD | {"at_s": 9}, GOOD | {"at_s": 8}], 2, "at_s 8 is before the row above; sort the trace by time"),
        ([GOOD | {"at_s": -1}], 1, "at_s is -1; it must be at least 0"),
        ([GOOD, "{broken\n"], 2, "not JSON"),
        ([GOOD, "[1]\n"], 2, "not a JSON object"),
        ([GOOD | {"language": "klingon"}], 1, 'language: "klingon" is not known; use en'),
        ([GOOD | {"think_s": 1, "session": "s"}], 1, "its session has no earlier row"),
        ([GOOD, {"prompt_tokens": 5, "output_tokens": 5}], 2, "at_s is missing"),
        ([GOOD | {"blocks": "all"}], 1, "blocks must be a list"),
        ([GOOD | {"blocks": [-4]}], 1, "blocks: -4 is neither a block id"),
        ([GOOD | {"blocks": [1], "block_tokens": 10}], 1, "blocks names 1 blocks, but the prompt has 100 whole ones"),
        ([GOOD | {"block_tokens": 64}, GOOD | {"block_tokens": 32}], 2, "block_tokens is 32, above it was 64"),
        ([{"when": 1}], 1, "columns are missing: a trace has at_s .* found: when"),
        ([moon(0, 600, [1, 2]), moon(-3, 600, [1, 2])], 2, "timestamp is -3"),
        ([moon(5, 600, [1, 2]), moon(3, 600, [1, 2])], 2, "timestamp 3 is before the line above"),
        ([moon(5, 600, ["x"])], 1, "hash_ids must be a list of whole numbers"),  # type: ignore[list-item]
        ([agent("s", 0, 0, 640, [[1, 10]]), agent("s", 1, -2, 640, [[1, 10]])], 2, "t is -2"),
        ([agent("s", 0, 5, 640, [[1, 10]]), agent("s", 1, 2, 640, [[1, 10]])], 2, "t 2 is before the request above"),
        ([agent("s", 0, 0, 640, [[1, 0]])], 1, r"h: \[1, 0\] is not \[first block, count\]"),
    ],
)
def test_a_row_that_cannot_be_is_named_by_its_line(tmp_path: Path, rows: list[Any], line: int, why: str) -> None:
    path = jsonl(tmp_path, *rows)
    with pytest.raises(UserError, match=f"^{path}:{line}: .*{why}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("trace.txt", b"", "not a trace"),
        ("trace.jsonl", b"", "no request in it"),
        ("trace.jsonl", b"\xff\xfe{}", "not UTF-8"),
        ("trace.jsonl.gz", b"nothing packed", "cannot be read"),
        ("trace.jsonl.gz", gzip.compress(b"{}" * 5000, mtime=0)[:40], "damaged"),
        ("trace.csv", b"at_s,prompt_tokens,output_tokens\n1,2\n", r":2: not as many fields"),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UserError, match=why):
        read_trace(path)


def test_a_folder_is_taken_for_decisions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no decisions-\*\.parquet in it"):
        read_trace(tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")


# ---- Mooncake -------------------------------------------------------------------------------------------------------


def test_requests_of_one_quantum_are_spread_over_it_in_their_order_by_the_seed(tmp_path: Path) -> None:
    path = jsonl(tmp_path, *(moon(at, 1100, [n, n + 500]) for n, at in enumerate([0] * 20 + [3000] * 20)))

    def starts(seed: int) -> list[float]:
        return [each.start_ms for each in read_trace(path, seed=seed).conversations]

    assert starts(1) == sorted(starts(1))
    assert starts(1)[0] >= 0
    assert starts(1)[19] < 3000 <= starts(1)[20] < starts(1)[39] < 6000
    assert starts(1) == starts(1) != starts(2)


def test_a_request_belongs_to_the_session_that_last_used_its_longest_known_prefix(tmp_path: Path) -> None:
    """Block 0 is in every request, so it tells nothing."""
    others = [moon(9000 + n, 2048, [0, 1000 + n, 2000 + n, 3000 + n]) for n in range(60)]
    rows = [moon(0, 1536, [0, 1, 2]), moon(1000, 1536, [0, 5, 6]), moon(2000, 2048, [0, 1, 2, 3]), *others]
    first, other, same, *_ = read_trace(jsonl(tmp_path, *rows)).conversations
    assert first.session == same.session != other.session


def test_only_whole_blocks_can_be_shared(tmp_path: Path) -> None:
    (one,) = read_trace(jsonl(tmp_path, moon(0, 1100, [4, 5, 6]))).conversations
    assert one.turns[0].blocks() == (4, 5)


# ---- agent sessions -------------------------------------------------------------------------------------------------


def sessions(folder: Path, **sampling: Any) -> Workload:
    rows = [
        agent("a", 0, 0, 640, [[1, 10]], think=None, spawned=0),
        agent("a", 1, 30, 1280, [[1, 10], [50, 10]], think=5),
        agent("a", 2, 500, 128_000, [[1, 2000]]),
        agent("a", 3, 600, 640, [[1, 10]]),
        agent("b", 0, 0, 6400, [[1, 100]]),
        {"session": "b", "i": 1, "t": 5, "spawn": "b/sub"},
    ]
    return read_trace(jsonl(folder, *rows, name="agents.jsonl.gz"), Sampling(**sampling), seed=3)


def test_a_session_is_cut_before_its_first_prompt_above_the_cap_and_the_report_says_so(tmp_path: Path) -> None:
    read = sessions(tmp_path)
    assert sorted(len(each.turns) for each in read.conversations) == [1, 2]
    assert any(note.startswith("2 requests left out") for note in read.notes)
    assert sorted(len(each.turns) for each in sessions(tmp_path, cap_tokens=1_000_000).conversations) == [1, 4]


def test_turns_keep_their_think_times_up_to_the_cap_and_ids_are_not_shared_between_sessions(tmp_path: Path) -> None:
    longest = max(sessions(tmp_path, think_cap_s=3.0).conversations, key=lambda each: len(each.turns))
    assert [each.think_ms for each in longest.turns] == [0.0, 3000.0]
    one, other = sessions(tmp_path).conversations
    assert not set(one.turns[0].blocks()) & set(other.turns[0].blocks())
    first, second = longest.turns
    assert second.blocks()[: len(first.blocks())] == first.blocks()


def test_zipf_draws_run_further_agents_of_a_session_that_share_its_head_only(tmp_path: Path) -> None:
    read = sessions(tmp_path, zipf=1.0, draws=200)
    by_session: dict[bytes | None, list[set[int]]] = {}
    for each in read.conversations:
        by_session.setdefault(each.session, []).append({b for turn in each.turns for b in turn.blocks()})
    counts = sorted(map(len, by_session.values()))
    assert sum(counts) == 200
    assert 40 < counts[0] < 90  # a third, by 1 and 1/2
    hot = by_session[session_key(b"a")]
    assert len(set.intersection(*hot)) == 10
    assert len(hot[0] & hot[1]) == 10


def test_nothing_left_under_the_cap_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no request is left; raise the cap"):
        sessions(tmp_path, cap_tokens=10)


# ---- Azure ----------------------------------------------------------------------------------------------------------


def test_azure_s_times_have_more_digits_than_python_reads(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    read = read_trace(path)
    assert [each.start_ms for each in read.conversations] == pytest.approx([0.0, 4314.579])
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,374,44\n")
    with pytest.raises(UserError, match=f'^{path}:2: TIMESTAMP: "yesterday" is not a date'):
        read_trace(path)


# ---- the common form ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50)))
def test_runs_spell_out_to_the_blocks_they_were_made_of(blocks: list[int]) -> None:
    spelled = [block for first, count in as_runs(blocks) for block in range(first, first + count)]
    assert spelled == blocks


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9))), st.integers(0, 40), st.integers(0, 1000))
def test_cut_runs_are_the_first_blocks_moved(runs: list[tuple[int, int]], blocks: int, offset: int) -> None:
    def spelled(of: Any) -> list[int]:
        return [block for first, count in of for block in range(first, first + count)]

    assert spelled(cut_runs(runs, blocks, offset)) == [each + offset for each in spelled(runs)[:blocks]]


def test_a_part_of_a_trace_starts_at_0_and_a_faster_one_keeps_think_times(tmp_path: Path) -> None:
    rows = [GOOD | {"at_s": at, "session": str(at)} for at in (0, 10, 20)]
    rows.append({"think_s": 4, "session": "20", "prompt_tokens": 2000, "output_tokens": 1})
    read = read_trace(jsonl(tmp_path, *rows))
    assert [each.start_ms for each in read.between(10, 30).conversations] == [0.0, 10_000.0]
    fast = read.faster(4.0)
    assert [each.start_ms for each in fast.conversations] == [0.0, 2500.0, 5000.0]
    assert fast.conversations[-1].turns[1].think_ms == 4000.0
    assert (read.span_ms, fast.span_ms) == (24_000.0, 9_000.0)
