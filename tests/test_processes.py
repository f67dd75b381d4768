"""Child processes: started, watched, read and stopped."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairlead import processes
from fairlead.processes import Assembly, Child, ChildError, free_ports, python_module
from tests.waiting import until

NO_SUCH_COMMAND = python_module("fairlead", "no-such-command")
SLEEPS = ("sleep", "600")


async def test_a_child_that_ends_by_itself_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    async with Child("the sidecar", NO_SUCH_COMMAND, tmp_path / "log") as child:
        with pytest.raises(ChildError, match=r"(?s)the sidecar ended with status 2; .*no-such-command"):
            await child.ended()


async def test_waiting_for_a_child_that_has_ended_does_not_wait_on(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    async with Child("the sidecar", NO_SUCH_COMMAND, tmp_path / "log") as child:
        with pytest.raises(ChildError, match="ended with status 2"):
            await child.until_ready(f"http://127.0.0.1:{port}/")


def test_free_ports_are_different_and_can_be_listened_on() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert all(1024 <= port < 65536 for port in ports)
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))


def test_a_port_is_not_given_out_twice_before_whoever_asked_first_can_listen() -> None:
    ports = [free_ports(1)[0] for _ in range(300)]
    assert len(set(ports)) == 300


def test_two_processes_are_not_given_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = free_ports(2)
    script = f"""if True:
        import sys
        from types import SimpleNamespace
        from fairlead import processes
        choices = iter(({mine}, {other}))
        processes._chance = SimpleNamespace(randrange=lambda *_: next(choices))
        print(processes.free_ports(1), flush=True)
        sys.stdin.read()  # until the test has asked in its turn
    """
    fcntl.lockf(processes._reservations(), fcntl.LOCK_UN, 1, other)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == f"[{other}]\n"
        processes._given_out.clear()
        choices = iter((other, mine))
        monkeypatch.setattr(processes, "_chance", SimpleNamespace(randrange=lambda *_: next(choices)))
        assert free_ports(1) == [mine]
        process.stdin.close()


def test_free_ports_are_none_that_an_outgoing_connection_may_take() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(first <= port <= last for port in free_ports(50))


def test_a_port_that_somebody_listens_on_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (other,) = free_ports(1)
        processes._given_out.clear()
        choices = iter((port, other))
        monkeypatch.setattr(processes, "_chance", SimpleNamespace(randrange=lambda *_: next(choices)))
        assert free_ports(1) == [other]


async def test_a_child_is_gone_after_its_block(tmp_path: Path) -> None:
    async with Child("a child", SLEEPS, tmp_path / "log") as child:
        pass
    assert not _lives(child.pid)


async def test_a_child_is_gone_when_its_block_raises() -> None:
    child = Child("a child", SLEEPS)
    with pytest.raises(ZeroDivisionError):
        async with child:
            raise ZeroDivisionError
    assert not _lives(child.pid)


async def test_a_child_is_gone_when_its_parent_is_killed() -> None:
    program = f"""
import asyncio
from fairlead.processes import Child

async def main():
    async with Child("a child", {SLEEPS!r}) as child:
        print(child.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
    async with Child("the parent", [sys.executable, "-c", program], has_output=True) as parent:
        pid = int(await parent.line())
        await until(lambda: _name(pid) == SLEEPS[0], "it is no longer setpriv, which has yet to ask for the signal")
        parent.kill()
        await until(lambda: not _lives(pid), "the kernel has ended it")


async def test_what_a_child_prints_comes_line_by_line_or_all_at_its_end() -> None:
    async with Child("a child", ["bash", "-c", "echo ready; echo noise >&2; echo done"], has_output=True) as child:
        assert await child.line() == b"ready\n"
        assert await child.output() == b"done\n"
        assert child.log_tail() == "noise"


async def test_a_child_that_ends_without_a_line_is_an_error_with_its_log() -> None:
    async with Child("a child", ["bash", "-c", "echo no such file >&2; exit 3"], has_output=True) as child:
        with pytest.raises(ChildError, match=r"(?s)a child ended with status 3; its log ends:.*no such file"):
            await child.line()


async def test_the_output_of_a_child_that_failed_is_an_error() -> None:
    async with Child("a child", ["bash", "-c", "echo half; exit 1"], has_output=True) as child:
        with pytest.raises(ChildError, match="ended with status 1"):
            await child.output()


async def test_a_child_that_prints_nothing_is_not_waited_for_forever() -> None:
    async with Child("a child", SLEEPS, has_output=True) as child:
        with pytest.raises(ChildError, match=r"printed nothing within 0\.01 s"):
            await child.line(within_s=0.01)


async def test_a_child_that_never_answers_is_an_error_after_a_while() -> None:
    async with Child("a child", SLEEPS) as child:
        with pytest.raises(ChildError, match=r"was not ready within 0\.05 s; its log ends:\n  \(empty\)"):
            await child.until_ready(f"http://127.0.0.1:{free_ports(1)[0]}/", within_s=0.05)


async def test_reading_the_log_does_not_move_where_the_child_writes(tmp_path: Path) -> None:
    script = "echo one >&2; echo; read -t 0.01; while [ ! -e go ]; do sleep 0.01; done; echo two >&2; echo"
    async with Child("a child", ["bash", "-c", f"cd {tmp_path}; {script}"], tmp_path / "log", has_output=True) as child:
        await child.line()
        assert child.log_tail() == "one"
        (tmp_path / "go").touch()
        await child.line()
        assert child.log_tail() == "one\ntwo"
        assert child.log_tail(1) == "two"


async def test_a_stubborn_child_and_what_it_started_are_gone_after_the_block(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    stubborn = f"trap '' TERM; sleep 60 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait; sleep 60"
    async with Child("a child", ["bash", "-c", stubborn], environment={"LANG": "C"}, stop_within_s=0.1):
        await until(pids.exists, "it has started its own")
    await until(lambda: not any(map(_lives, pids.read_text().split())), "the kernel has ended both")


def _name(pid: int) -> str:
    """Of the program that it runs now."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _lives(pid: int | str) -> bool:
    """A process that is dead and not yet reaped by its new parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class _Two(Assembly):
    """Two parts, of which the second may not start."""

    def __init__(self, events: list[str], *, fails: bool = False) -> None:
        self._events = events
        self._fails = fails

    async def _start(self, stack: AsyncExitStack) -> None:
        for part in ("one", "two"):
            if self._fails and part == "two":
                raise ChildError("two is broken")
            self._events.append(part)
            stack.callback(self._events.append, f"{part} stopped")


async def test_an_assembly_stops_its_parts_the_last_first() -> None:
    events: list[str] = []
    async with _Two(events):
        events.append("block")
    assert events == ["one", "two", "block", "two stopped", "one stopped"]


async def test_an_assembly_that_does_not_start_stops_what_has_started() -> None:
    events: list[str] = []
    with pytest.raises(ChildError, match="two is broken"):
        async with _Two(events, fails=True):
            events.append("block")
    assert events == ["one", "one stopped"]
