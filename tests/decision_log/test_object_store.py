"""A decision log in an object store, a real server of S3's protocol: written from a sidecar, read by the commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from structlog.testing import capture_logs

from fairlead.config import Decisions
from fairlead.decision_log import files, open_log
from fairlead.decision_log.log import DecisionLog
from fairlead.errors import UserError
from fairlead.tools.decisions import is_decision_log, latest, latest_of_each, read_decisions
from fairlead.tools.replay.traces import read_trace
from tests.command import fairlead
from tests.decision_log.object_store import BUCKET, KEY, SECRET, ObjectStore
from tests.decision_log.world import MODELS, USUAL, Pool, decisions
from tests.tools.replay.test_observed import TRUE, log_of, pool
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("store")]

FAT_BLOCKS = [[number, 1] for number in range(0, 800, 2)]  # of a prompt that shares pieces with many


def opened(folder: Path, path: str, **settings: Any) -> DecisionLog:
    log = open_log(Decisions(path=path, **settings), folder, lambda: MODELS)
    assert isinstance(log, DecisionLog)
    return log


def add(log: DecisionLog, requests: int) -> None:
    world = Pool()
    for number in range(requests):
        log.add(world.ended(request_id=b"id-%d" % number))


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """An empty place of the test's own."""
    return f"s3://{BUCKET}/{abs(hash(request.node.name))}/log"


async def test_what_was_added_is_in_the_store_when_the_log_has_stopped(place: str, tmp_path: Path) -> None:
    log = opened(tmp_path, place)
    log.start()
    add(log, 100)
    await log.stop()
    assert read_decisions(place)["request"].n_unique() == 100
    assert list((tmp_path / "decisions-spool").iterdir()) == []
    assert log.uploads is not None
    assert (log.counts["written"], log.uploads.counts["uploaded"]) == (100, 1)


async def test_rows_wait_for_a_bucket_that_is_not_there_and_nobody_reads_credentials(
    store: ObjectStore, tmp_path: Path
) -> None:
    with capture_logs() as logs:
        log = opened(tmp_path, "s3://later/log")
        assert log.uploads is not None
        log.start()
        add(log, 10)
        await log.stop()
        again = opened(tmp_path, "s3://later/log")
        assert again.uploads is not None
        again.start()
        await until(lambda: again.uploads is not None and again.uploads.counts["failed"] > 0)
        store.put("later")
        await until(lambda: again.uploads is not None and again.uploads.counts["uploaded"] == 1)
        await again.stop()
    assert read_decisions("s3://later/log").height == 10
    assert {entry["reason"] for entry in logs if "reason" in entry} == {"NoSuchBucket"}
    assert not [secret for secret in (KEY, SECRET) if secret in str(logs)]


async def test_beyond_the_limit_the_oldest_files_of_the_spool_are_lost_and_counted(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "rotate", partial(_rotate_to, 1))
    log = opened(tmp_path, place)
    for number in range(3):
        log._write_file([tuple((USUAL | {"at_s": float(number)}).values())])
    assert log.uploads is not None
    assert log.uploads.counts["lost"] == 2
    assert len(list((tmp_path / "decisions-spool").iterdir())) == 1


def _rotate_to(most_bytes: int, folder: Path, _: int) -> int:
    newest_first = sorted(folder.glob(files.PATTERN), reverse=True)
    for file in newest_first[most_bytes:]:
        file.unlink()
    return len(newest_first[most_bytes:])


def test_a_place_without_files_a_bucket_that_is_not_there_and_a_foreign_file_are_mistakes(place: str) -> None:
    assert is_decision_log(place)
    with pytest.raises(UserError, match=r"no decisions-\*\.parquet in it"):
        read_decisions(place)
    with pytest.raises(UserError, match=r"cannot be read \((NoSuchBucket|FileNotFoundError)\)") as caught:
        read_decisions("s3://nobodys-bucket/log")
    assert KEY not in str(caught.value)
    pl.DataFrame({"a": [1]}).write_parquet(f"{place}/decisions-1.parquet", credential_provider=None)
    with pytest.raises(UserError, match="it is not a file of a decision log"):
        read_decisions(place)


@pytest.mark.parametrize(
    "path", ["s3://", "s3://b", "s3://key:secret@bucket/log", "gs://bucket/log", "s3://bucket/a b"]
)
def test_a_url_that_is_no_place_is_refused_and_not_repeated(path: str) -> None:
    with pytest.raises(ValueError, match="s3://bucket/prefix") as caught:
        Decisions(path=path)
    assert "write s3://bucket/prefix" in str(caught.value)


def test_a_reader_may_keep_the_latest_rows_or_those_of_each_endpoint(tmp_path: Path) -> None:
    rows = decisions(*({"endpoint": f"e{number % 3}", "request": str(number)} for number in range(60)))
    rows.write_parquet(tmp_path / "decisions-1.parquet")
    assert read_decisions(tmp_path, ("at_s",), keep=latest(5))["at_s"].to_list() == [55.0, 56.0, 57.0, 58.0, 59.0]
    kept = read_decisions(tmp_path, ("at_s", "endpoint"), keep=latest_of_each("endpoint", 2))
    assert kept["at_s"].to_list() == [54.0, 55.0, 56.0, 57.0, 58.0, 59.0]


def test_of_a_part_of_a_log_conversations_are_those_that_begin_in_it(tmp_path: Path) -> None:
    rows = [
        {"at_s": 1000.0 + at_s, "session": session, "output_tokens": 5, "total_ms": 1000.0}
        for at_s, session in ((0, "a"), (100, "b"), (110, "a"), (190, "b"), (250, "c"), (300, "b"), (390, "d"))
    ]
    log = decisions(*rows)
    for number, part in enumerate((log[:3], log[3:])):
        part.write_parquet(tmp_path / f"decisions-{number}.parquet")
    whole = read_trace(tmp_path).between(90.0, 350.0)
    part_of_it = read_trace(tmp_path, from_s=90.0, to_s=350.0).between(90.0, 350.0)
    assert part_of_it.conversations == whole.conversations
    assert [len(each.turns) for each in whole.conversations] == [3, 1]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The same log in a folder and in the store."""
    folder = tmp_path_factory.mktemp("log") / "logged"
    folder.mkdir()
    log_of(pool(TRUE, TRUE), folder, talks=300)
    for file in folder.iterdir():
        files.upload(file, f"s3://{BUCKET}/logged")
    return folder, f"s3://{BUCKET}/logged"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("calibrate LOG --source x --out world.yaml", "world.yaml"),
        ("fit LOG --answers-are-checked --no-plot --out .", "kv-lookup.json"),
        ("replay LOG --policies least_request --seeds 1 --jobs 1 --out .", "summary.json"),
        ("tune LOG --proposals 1 --seeds 1 --jobs 1 --out .", "proposals.jsonl"),
    ],
    ids=["calibrate", "fit", "replay", "tune"],
)
def test_a_command_finds_in_the_store_what_it_finds_in_a_folder(
    command: str, result: str, logged: tuple[Path, str], tmp_path: Path
) -> None:
    found = []
    for log in logged:
        done = fairlead(*(log if part == "LOG" else part for part in command.split()), folder=tmp_path)
        assert done.returncode == 0, done.stderr
        found.append((tmp_path / result).read_text())
    assert found[0] == found[1]


_PEAK = """
import json, resource, sys
import polars
from fairlead.cli import main
sys.argv = ["fairlead", *json.loads(sys.argv[1])]
try:
    main()
finally:
    print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
"""


def _peak_bytes(folder: Path, *arguments: str) -> int:
    """The most memory that a command had."""
    ran = subprocess.run(
        [sys.executable, "-c", _PEAK, json.dumps(arguments)],
        capture_output=True, text=True, cwd=folder, check=False, env=os.environ | {"POLARS_MAX_THREADS": "2"},
    )  # fmt: skip
    assert "PEAK" in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr
    return int(ran.stderr.rsplit("PEAK", 1)[1])


@pytest.fixture(scope="module")
def large() -> tuple[str, str, int]:
    """A log of one file, one of fifty, and how many bytes more the second has in memory."""
    rows, parts = 2000, 50
    blocks = pl.lit(pl.Series("blocks", [FAT_BLOCKS], dtype=files.SCHEMA["blocks"])).first()
    usual = decisions(*[{"output_tokens": 50, "first_token_ms": 90.0, "cached_tokens": 0}] * rows)
    small, large = f"s3://{BUCKET}/small", f"s3://{BUCKET}/large"
    for part in range(parts):
        number = pl.Series(range(part * rows, (part + 1) * rows))
        frame = usual.with_columns(
            at_s=number.cast(pl.Float64) * 10.0, request=number.cast(pl.String), question=number.cast(pl.String),
            last=pl.lit(False), prompt_tokens=pl.lit(8000, pl.Int32), block_tokens=pl.lit(20.0, pl.Float32),
            blocks=blocks,
        )  # fmt: skip
        for place in (large, small)[: 2 if part == 0 else 1]:
            frame.write_parquet(f"{place}/decisions-{part:04}.parquet", credential_provider=None)
    return small, large, int(read_decisions(small).estimated_size()) * (parts - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["calibrate", "{log}", "--out", "world.yaml"],
        ["fit", "{log}", "--no-plot", "--out", "models"],
        ["replay", "{log}", "--policies", "least_request", "--to-s", "2000", "--seeds", "1", "--jobs", "1"],
    ],
    ids=lambda command: command[0],
)
def test_a_log_larger_than_the_memory_that_a_command_takes_is_read(
    command: list[str], large: tuple[str, str, int], tmp_path: Path
) -> None:
    small, whole, size = large
    peaks = [_peak_bytes(tmp_path, *(part.format(log=log) for part in command)) for log in (small, whole)]
    assert peaks[1] - peaks[0] < size / 4, f"{peaks} for {size}"
