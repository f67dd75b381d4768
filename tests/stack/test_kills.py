"""Every part of a pool under load is killed, or told to end, and comes back: no request of any kind is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.stack.kills import CLIENTS, HEADING, Row, world

pytestmark = pytest.mark.timeout(900)


def _judged(rows: list[Row]) -> None:
    table = "\n".join([HEADING, *map(str, rows), *sorted({reason for row in rows for reason in row.reasons})])
    print(table)
    assert all(row.lost.total() == 0 for row in rows), table


async def test_no_request_is_lost_when_the_sidecar_an_engine_or_redis_is_killed(tmp_path: Path) -> None:
    async with world(tmp_path, sidecars=1) as running:
        rows = [
            await running.kill(part, number)
            for part in (*running.sidecars, *running.engines, running.redis)
            for number in (signal.SIGKILL, signal.SIGTERM)
        ]
    _judged(rows)


async def test_two_sidecars_take_over_from_each_other(tmp_path: Path) -> None:
    """While one is away the other advises requests of every kind, which `kill` waits for."""
    async with world(tmp_path, sidecars=2) as running:
        rows = [
            await running.kill(sidecar, number)
            for sidecar in running.sidecars
            for number in (signal.SIGKILL, signal.SIGTERM)
        ]
    _judged(rows)


async def test_in_full_duplex_a_killed_sidecar_costs_what_it_was_reading_and_a_drained_one_nothing(
    tmp_path: Path,
) -> None:
    """In this mode Envoy has no copy of a body that it has begun to pass on."""
    async with world(tmp_path, sidecars=1, mode="full_duplex") as running:
        (sidecar,) = running.sidecars
        killed, drained = [await running.kill(sidecar, number) for number in (signal.SIGKILL, signal.SIGTERM)]
        engine = await running.kill(running.engines[0], signal.SIGKILL)
    _judged([drained, engine])
    assert killed.lost.total() <= 3 * CLIENTS, killed
