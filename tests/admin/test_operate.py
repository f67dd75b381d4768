"""The page of documentation for operators names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from aiohttp import ClientSession

from fairlead import admin as telemetry
from tests.admin.world import AdminPort
from tests.core.world import make_endpoint

TEXT = (Path(__file__).parents[2] / "docs/operate.md").read_text(encoding="utf-8")


def test_every_metric_documented_for_operators_exists() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in Path(telemetry.__path__[0]).glob("*.py"))
    declared = set(re.findall(r'"(fairlead_\w+)"', source))
    declared |= {
        f"fairlead_{name}" for name in re.findall(r'\("(\w+)", "[^"]+", "(?:endpoint|model|language)"', source)
    }
    documented = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in re.findall(r"\bfairlead_\w+", TEXT)}
    assert len(documented) > 10
    assert documented - declared == set()


async def test_every_page_documented_for_operators_answers() -> None:
    documented = re.findall(r"`(/(?:debug|metrics|healthz|readyz)[^`]*)`", TEXT)
    assert len(documented) >= 8
    with AdminPort([make_endpoint("10.0.0.1:1")], {}) as admin:
        async with ClientSession(admin.url) as client:
            statuses = {path: (await client.get(path.replace("{id}", "nobody"))).status for path in documented}
    assert {path: status for path, status in statuses.items() if status != (404 if "{id}" in path else 200)} == {}
