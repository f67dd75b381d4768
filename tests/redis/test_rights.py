"""The rights that docs/sharing.md gives a user of Redis are those that a sidecar needs, and no more."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fairlead.redis.password import StorePassword
from tests.redis.server import RedisServer
from tests.redis.world import Sidecar, key, until

PAGE = Path(__file__).parents[2] / "docs/sharing.md"


def rule() -> list[str]:
    found = re.search(r"^redis-cli (ACL SETUSER (?:[^\n\\]|\\\n)*)", PAGE.read_text(), re.MULTILINE)
    assert found is not None
    return shlex.split(found[1].replace("\\\n", " "))


async def use_all(redis: RedisServer, folder: Path) -> tuple[int, str]:
    """How often Redis refused something while two sidecars shared all that there is, and what it refused."""
    (folder / "password").write_text("PASSWORD\n")
    url = f"redis://fairlead@127.0.0.1:{redis.port}/3"
    sidecars: list[Sidecar] = []

    def refused() -> int:
        return sum(sidecar.store.link.failures for sidecar in sidecars)

    def join(restored: Sequence[str] = ()) -> Sidecar:
        sidecars.append(Sidecar(url, password=StorePassword(folder / "password"), restored=restored))
        return sidecars[-1]

    async def until_refused_or(condition: Callable[[], object], what: str) -> None:
        await until(lambda: refused() or condition(), what)

    try:
        first = join()
        await until_refused_or(first.up, "it has connected")
        first.turn("s", "a:1")
        first.planner.draining.add("b:1")
        await until_refused_or(first.store.draining, "Redis knows of the drain")
        first.store.moves.made(key("s"), "b:1", "a:1", [1, 2])
        await until_refused_or(lambda: not first.store.moves.pending, "Redis knows of the move")
        second = join(restored=["b:1"])
        await until_refused_or(lambda: second.table.left_by_move(key("s")), "the second knows of the move")
        await until_refused_or(lambda: second.rates.is_shared and second.store.load.peers.count, "and of the first")
        first.planner.draining.discard("b:1")
        await until_refused_or(lambda: not second.planner.draining, "and of the drain's end")
    finally:
        for sidecar in sidecars:
            await sidecar.store.stop()
    return refused(), redis.ask("ACL", "LOG")


async def test_they_are_enough_for_all_that_is_shared(redis: RedisServer, tmp_path: Path) -> None:
    assert redis.ask(*rule()) == "+OK\r\n"
    assert await use_all(redis, tmp_path) == (0, "*0\r\n")


@pytest.mark.parametrize("right", [word for word in rule() if word.startswith("+") and word != "+select"])
async def test_none_of_them_is_too_much(redis: RedisServer, tmp_path: Path, right: str) -> None:
    assert redis.ask(*rule(), right.replace("+", "-")) == "+OK\r\n"
    refused, said = await use_all(redis, tmp_path)
    assert refused
    assert f"\r\n{right[1:]}\r\n" in said
