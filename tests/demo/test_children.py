from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Never

import pytest

from fairlead.demo.children import Child, ChildError, all_of, free_ports, while_running


async def test_a_child_that_ends_by_itself_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    async with Child("the sidecar", ["no-such-command"], tmp_path / "log") as child:
        with pytest.raises(ChildError, match=r"(?s)the sidecar ended with status 2; .*no-such-command"):
            await child.ended()


async def test_waiting_for_a_child_that_has_ended_does_not_wait_on(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    async with Child("the sidecar", ["no-such-command"], tmp_path / "log") as child:
        with pytest.raises(ChildError, match="ended with status 2"):
            await child.until_ready(f"http://127.0.0.1:{port}/")


async def test_work_ends_with_the_error_of_what_it_depends_on() -> None:
    cleaned_up = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    async def ends() -> Never:
        raise ChildError("gone")

    with pytest.raises(ChildError, match="gone"):
        await while_running(work(), ends())
    assert cleaned_up.is_set()


async def test_work_that_is_done_ends_the_watch() -> None:
    async def work() -> int:
        return 7

    async def ends() -> Never:
        await asyncio.Event().wait()
        raise AssertionError

    assert await while_running(work(), ends()) == 7


async def test_the_first_error_of_many_works_is_raised_as_it_is() -> None:
    async def fails() -> None:
        raise ValueError("mine")

    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="mine"):
        await all_of(waits(), fails())


def test_free_ports_are_different_and_can_be_listened_on() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert all(1024 <= port < 65536 for port in ports)


async def test_a_child_is_gone_after_its_block(tmp_path: Path) -> None:
    async with Child("a child", ["engine", "--help"], tmp_path / "log") as child:
        assert child._process is not None
        pid = child._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_stubborn_child_and_what_it_started_are_gone_after_the_block(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    stubborn = f"trap '' TERM; sleep 60 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait; sleep 60"
    async with Child("a child", ["-c", stubborn], tmp_path / "log", program=["bash"], environment={"LANG": "C"}):
        while not pids.exists():  # noqa: ASYNC110 - a file sets no event
            await asyncio.sleep(0.01)
    while any(map(_lives, pids.read_text().split())):  # noqa: ASYNC110 - the kernel takes a moment, and tells nobody
        await asyncio.sleep(0.01)


def _lives(pid: str) -> bool:
    """A process that is dead and not yet reaped by its new parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
