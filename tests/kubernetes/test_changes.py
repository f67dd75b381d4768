"""No request is lost while the pool changes, through a real Envoy and a real API server. More: `changes.py`."""

from __future__ import annotations

from pathlib import Path

from tests.kubernetes.changes import lose_api_server, lose_node, replace_all, scale, world
from tests.kubernetes.cluster import Namespace


async def test_no_request_is_lost_while_pods_come_and_go_and_the_api_server_is_away(
    tmp_path: Path, namespace: Namespace
) -> None:
    async with world(namespace, tmp_path) as pool:
        for what, change in (
            ("more", lambda row: scale(pool, row, 6)),
            ("fewer", lambda row: scale(pool, row, 2)),
            ("replaced", lambda row: replace_all(pool, row)),
            ("API server away", lambda row: lose_api_server(pool, row)),
            ("node gone", lambda row: lose_node(pool, row)),
        ):
            row = await pool.during(what, change)
            assert (what, dict(row.lost)) == (what, {})
            assert row.sent > 0
