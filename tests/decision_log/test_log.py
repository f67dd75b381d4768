"""The log beside the request path: files on disk, bounds, samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fairlead.config import Decisions
from fairlead.decision_log import files, log, open_log
from fairlead.decision_log.columns import COLUMNS
from fairlead.decision_log.log import MOST_WAITING, DecisionLog
from fairlead.errors import UserError
from fairlead.tools.decisions import read_decisions
from tests.decision_log.world import MODELS, USUAL, Pool
from tests.waiting import until


def opened(folder: Path, **settings: Any) -> DecisionLog:
    opened = open_log(Decisions(path="decisions", **settings), folder, lambda: MODELS)
    assert isinstance(opened, DecisionLog)
    return opened


def add(into: DecisionLog, pool: Pool, requests: int = 1, **facts: Any) -> None:
    for number in range(requests):
        into.add(pool.ended(request_id=b"id-%d" % number, **facts))


async def test_what_was_added_is_in_a_file_when_the_log_has_stopped(tmp_path: Path) -> None:
    written = opened(tmp_path)
    written.start()
    add(written, Pool(), 100, session="s", prefix=range(8))
    await written.stop()
    rows = read_decisions(tmp_path / "decisions")
    assert (rows.columns, rows.height) == (list(COLUMNS), 100)
    assert rows["session"].n_unique() == 1
    assert rows["blocks"].to_list()[0] == [[0, 2]]
    assert written.counts["written"] == 100


async def test_a_file_is_written_while_it_runs_as_soon_as_there_is_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "ROWS_IN_A_FILE", 50)
    written = opened(tmp_path)
    written.start()
    add(written, Pool(), 120)
    await until(lambda: written.counts["written"] >= 100, "the thread has written")
    await written.stop()
    heights = [pl.read_parquet(file).height for file in sorted((tmp_path / "decisions").glob("*.parquet"))]
    assert sum(heights) == 120
    assert len(heights) > 1


def test_beyond_what_may_wait_requests_are_dropped_and_counted(tmp_path: Path) -> None:
    waiting = opened(tmp_path)
    add(waiting, Pool(), MOST_WAITING + 10)
    assert waiting.counts["dropped"] == 10


def test_long_prompts_fill_what_may_wait_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_WAITING_LINKS", 1000)
    waiting = opened(tmp_path)
    add(waiting, Pool(), 12, prefix=range(100))
    assert waiting.counts["dropped"] == 2


@pytest.mark.parametrize("sessions", [True, False])
def test_a_sample_has_about_its_share_of_sessions_and_all_of_each(tmp_path: Path, sessions: bool) -> None:
    sampled: list[int] = []
    pool = Pool()
    for number in range(200):
        one = opened(tmp_path, sample=0.25)
        facts: dict[str, Any] = {"session": f"s{number}"} if sessions else {"prefix": [number * 7919]}
        add(one, pool, 3, **facts)
        sampled.append(len(one._waiting))
    assert set(sampled) == {0, 3}
    assert 25 <= sampled.count(3) <= 80


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), ValueError("a fault of ours")])
async def test_a_file_that_cannot_be_written_is_counted_and_the_log_goes_on(fault: Exception) -> None:
    heights: list[int] = []

    def write(rows: Sequence[tuple[Any, ...]]) -> None:
        if not heights:
            heights.append(0)
            raise fault
        heights.append(len(rows))

    full = DecisionLog(write, sample=1.0, models=lambda: MODELS)
    pool = Pool()
    add(full, pool, 5)
    await full.stop()
    add(full, pool, 7)
    await full.stop()
    assert (full.counts["failed"], full.counts["written"], heights) == (5, 7, [0, 7])


async def test_a_scrape_in_the_middle_of_a_write_counts_no_failure_that_is_taken_back() -> None:
    """Prometheus takes a counter that falls for a restart, and all that it had counted for new failures."""
    seen: list[int] = []
    healthy = DecisionLog(lambda _: seen.append(healthy.counts["failed"]), sample=1.0, models=lambda: MODELS)
    add(healthy, Pool(), 5)
    await healthy.stop()
    assert (seen, healthy.counts["failed"], healthy.counts["written"]) == ([0], 0, 5)


def test_the_oldest_files_go_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"decisions-2026010{number}.parquet").write_bytes(b"x" * 100)
    (tmp_path / "mine.parquet").write_bytes(b"x" * 1000)
    assert files.rotate(tmp_path, 250) == 3
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["decisions-20260103.parquet", "decisions-20260104.parquet", "mine.parquet"]


def test_after_the_clock_was_set_back_the_files_written_before_go_first(tmp_path: Path) -> None:
    before = tmp_path / "decisions-21060207T062815.000000-0123abcd.parquet"
    before.write_bytes(b"x" * 100)
    row = tuple(USUAL.values())
    sizes = [files.write(tmp_path, [row]) for _ in range(3)]
    assert files.rotate(tmp_path, sum(sizes)) == 1
    assert not before.exists()
    left = sorted(tmp_path.iterdir())
    assert left == sorted(left, key=lambda path: path.stat().st_mtime_ns)
    assert files.rotate(tmp_path, sizes[2]) == 2
    assert list(tmp_path.iterdir()) == left[2:]


def test_a_file_that_somebody_else_named_is_as_old_as_its_last_change(tmp_path: Path) -> None:
    mine = tmp_path / "decisions-of-last-week.parquet"
    mine.write_bytes(b"x" * 100)
    os.utime(mine, (1.7e9, 1.7e9))
    size = files.write(tmp_path, [tuple(USUAL.values())])
    assert files.rotate(tmp_path, size) == 1
    assert not mine.exists()


def test_the_newest_file_stays_however_large(tmp_path: Path) -> None:
    (tmp_path / "decisions-1.parquet").write_bytes(b"x" * 100)
    assert files.rotate(tmp_path, 1) == 0


def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "decisions").write_text("a file")
    with pytest.raises(UserError, match=r"decisions\.path"):
        opened(tmp_path)
