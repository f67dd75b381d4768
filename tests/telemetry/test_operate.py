"""The page of documentation for operators names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from aiohttp import ClientSession

from fairlead import telemetry
from tests.telemetry.world import AdminPort

TEXT = (Path(__file__).parents[2] / "docs/operate.md").read_text(encoding="utf-8")


def test_every_metric_that_operators_are_told_of_exists() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in Path(telemetry.__path__[0]).glob("*.py"))
    declared = set(re.findall(r'"(fairlead_\w+)"', source))
    declared |= {f"fairlead_learned_{name}" for name in re.findall(r'\("(\w+)", "[^"]+", "(?:model|language)"', source)}
    told = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in re.findall(r"\bfairlead_\w+", TEXT)}
    assert len(told) > 10
    assert told - declared == set()


async def test_every_page_that_operators_are_told_of_answers() -> None:
    told = re.findall(r"`(/(?:debug|metrics|healthz|readyz)[^`]*)`", TEXT)
    assert len(told) >= 8
    with AdminPort([], {}) as admin:
        async with ClientSession(admin.url) as client:
            statuses = {path: (await client.get(path.replace("{id}", "nobody"))).status for path in told}
    assert {path: status for path, status in statuses.items() if status != (404 if "{id}" in path else 200)} == {}
