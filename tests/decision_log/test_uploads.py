"""Files that wait for an object store: what happens while it is away, and what becomes of each file."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fairlead.decision_log import uploads as module
from fairlead.decision_log.location import why_not
from fairlead.decision_log.uploads import UnreadableError, Uploads
from tests.waiting import until


class Store:
    """What it has taken, in order; it raises `fault`."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.has: list[str] = []
        self.fault = fault

    def take(self, file: Path) -> None:
        if self.fault is not None:
            raise self.fault
        if file.read_bytes() == b"damaged":
            raise UnreadableError
        self.has.append(file.name)


@pytest.fixture
def spool(tmp_path: Path) -> Callable[..., Path]:
    """Makes the folder, with files of these names in it."""

    def spool(*names: str, data: bytes = b"rows") -> Path:
        for name in names:
            (tmp_path / name).write_bytes(data)
        return tmp_path

    return spool


@asynccontextmanager
async def sending(spool: Path, store: Store) -> AsyncIterator[Uploads]:
    uploads = Uploads(spool, "decisions-*", store.take)
    uploads.start()
    yield uploads
    await uploads.stop()


async def test_the_oldest_goes_first_and_is_gone_from_the_spool(spool: Callable[..., Path]) -> None:
    store, folder = Store(), spool("decisions-2", "decisions-1", "other")
    async with sending(folder, store) as uploads:
        await until(lambda: uploads.counts["uploaded"] == 2)
    assert store.has == ["decisions-1", "decisions-2"]
    assert [path.name for path in folder.iterdir()] == ["other"]
    assert uploads.waiting_bytes == 0


async def test_what_a_store_did_not_take_waits_and_is_tried_again(
    spool: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    store, folder = Store(ConnectionRefusedError("Connection refused")), spool("decisions-1", "decisions-2")
    with capture_logs() as logs:
        async with sending(folder, store) as uploads:
            await until(lambda: uploads.counts["failed"] >= 3)
            assert uploads.waiting_bytes == 8
            store.fault = None
            await until(lambda: uploads.counts["uploaded"] == 2)
    assert uploads.counts["lost"] == 0
    told = [entry["event"] for entry in logs]
    assert told == ["the store of decisions takes no files; they wait", "the store of decisions takes files again"]
    assert logs[0]["reason"] == "connection refused"


async def test_at_the_end_what_a_store_that_is_away_did_not_take_is_left_for_the_next_start(
    spool: Callable[..., Path],
) -> None:
    store, folder = Store(TimeoutError("operation timed out")), spool("decisions-1")
    async with sending(folder, store) as uploads:
        await until(lambda: uploads.counts["failed"] == 1)
    assert [path.name for path in folder.iterdir()] == ["decisions-1"]
    store.fault = None
    async with sending(folder, store):
        pass
    assert store.has == ["decisions-1"]


async def test_a_damaged_file_does_not_keep_the_others_waiting(spool: Callable[..., Path]) -> None:
    store, folder = Store(), spool("decisions-1", data=b"damaged")
    spool("decisions-2")
    async with sending(folder, store) as uploads:
        await until(lambda: store.has == ["decisions-2"])
    assert uploads.counts["lost"] == 1
    assert [path.name for path in folder.iterdir()] == [".damaged-decisions-1"]


async def test_a_file_that_another_sidecar_sent_meanwhile_is_no_failure(spool: Callable[..., Path]) -> None:
    folder = spool("decisions-1")

    class Stolen(Store):
        def take(self, file: Path) -> None:
            file.unlink()
            raise FileNotFoundError(file)

    async with sending(folder, Stolen()) as uploads:
        await until(lambda: not list(folder.iterdir()))
    assert (uploads.counts["failed"], uploads.counts["uploaded"]) == (0, 0)


async def test_a_spool_that_cannot_be_listed_for_a_while_is_tried_again(
    spool: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    store, folder = Store(), spool("decisions-1")

    def exhausted(*_: object) -> Iterator[Path]:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as out_of_descriptors:
        out_of_descriptors.setattr(Path, "glob", exhausted)
        uploads = Uploads(folder, "decisions-*", store.take)
        uploads.start()
        await until(lambda: uploads.counts["failed"] >= 2)
    await until(lambda: store.has == ["decisions-1"])
    await uploads.stop()


def test_why_a_store_refused_is_its_code_and_not_its_text_which_has_the_key() -> None:
    answer = "<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>AKIAIOSFODNN7EXAMPLE</AWSAccessKeyId></Error>"
    assert why_not(OSError(f"status code: 403 Forbidden: {answer}")) == "InvalidAccessKeyId"
    assert why_not(OSError("s3://key:secret@bucket is odd")) == "OSError"
