"""Moves over a real Redis, as far as finding them there goes; what they mean is in tests/migration."""

from __future__ import annotations

import pytest

from fairlead.redis import moves
from fairlead.redis.moves import KEY_PREFIX
from tests.redis.conftest import Join
from tests.redis.server import RedisServer
from tests.redis.world import key, until

_OTHERS = "for number = 1, 5000 do redis.call('SET', 'other:' .. number, '1') end"


async def test_a_sidecar_that_starts_finds_a_move_among_many_other_keys(
    redis: RedisServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await join()
    first.bind("s", "b:1")
    first.store.moves.made(key("s"), "a:1", "b:1", [1, 2, 3])
    await until(lambda: redis.ask("EXISTS", KEY_PREFIX + key("s").hex()) == ":1\r\n", "Redis knows it")
    redis.ask("EVAL", _OTHERS, "0")
    monkeypatch.setattr(moves, "_MOST_SCANS", moves._MOST_SCANS // 400)  # of two millions of keys as of 5,000
    second = await join()
    await until(lambda: second.table.left_by_move(key("s")) == ("a:1", True), "it has been read")
