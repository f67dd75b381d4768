"""A real Prometheus that scrapes a stack's sidecar, with the rules of deploy/ or with those made quick."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from fairlead.processes import Child, free_ports
from tests.stack.conftest import Stack

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
RULES: Final = (DEPLOY / "prometheus/alerts.yaml", DEPLOY / "prometheus/recording.yaml")
INSTALL: Final = "run .ci/install-system-parts (or: apt-get install prometheus)"
_EXEMPLARS: Final = "--enable-feature=exemplar-storage"
_MINUTES: Final = re.compile(r"(\[|^)(\d+)m(\]|$)")
_AGE: Final = re.compile(r"(_age_seconds\{[^}]*\} > )(\d+)")


class Prometheus:
    def __init__(self, pool: Stack, url: str) -> None:
        self._pool, self._url = pool, url

    async def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples that `query` has now."""
        return list((await self._page("query", query=query))["result"])

    async def ask_range(self, query: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """The series that `query` has between two Unix times; its samples are in `values`."""
        window = {"start": f"{start_s}", "end": f"{end_s}", "step": f"{step_s}"}
        return list((await self._page("query_range", query=query, **window))["result"])

    async def exemplars(self, metric: str, label: str) -> set[str]:
        """The values of `label` that the exemplars of `metric` have."""
        series = await self._page("query_exemplars", query=metric, start="0", end="9999999999")
        return {exemplar["labels"][label] for each in series for exemplar in each["exemplars"]}

    async def _page(self, page: str, **where: str) -> Any:
        plain = {"accept-encoding": "identity"}
        async with self._pool.client.get(f"{self._url}/api/v1/{page}", params=where, headers=plain) as response:
            document = await response.json()
        assert document["status"] == "success", (where, document)
        return document["data"]

    async def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        return {each["metric"]["alertname"] for each in await self.ask('ALERTS{alertstate="firing"}')}


@asynccontextmanager
async def prometheus(
    pool: Stack, folder: Path, *, rules: Sequence[Path] = RULES, interval: str = "500ms"
) -> AsyncIterator[Prometheus]:
    path = shutil.which("prometheus")
    assert path is not None, f"prometheus is missing: {INSTALL}"
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    scraped = [{"targets": [pool.admin_url.removeprefix("http://")]}]
    configuration = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [{"job_name": "fairlead", "static_configs": scraped}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    flags = (f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'tsdb'}", _EXEMPLARS)
    async with Child("Prometheus", (path, *flags, f"--web.listen-address={listen}")) as child:
        await child.until_ready(f"http://{listen}/-/ready")
        yield Prometheus(pool, f"http://{listen}")


def quick_rules(folder: Path, interval: str) -> list[Path]:
    """The rules of deploy/ for a world in which a minute is a second: durations and ages, and no other threshold.

    An alert without a `for` tells of single events as long as its window is. That stays, or an event would be told for
    seconds only, and a test would fail where just then a busy machine misses scrapes, which is an alert, too.
    """
    written = []
    for path in RULES:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in document["groups"]:
            group["interval"] = interval
            for rule in group["rules"]:
                if "alert" in rule and "for" not in rule:
                    continue
                rule["expr"] = _AGE.sub(_in_seconds, _MINUTES.sub(r"\1\2s\3", rule["expr"]))
                if "for" in rule:
                    rule["for"] = _MINUTES.sub(r"\1\2s\3", rule["for"])
        written.append(folder / path.name)
        written[-1].write_text(yaml.safe_dump(document), encoding="utf-8")
    return written


def _in_seconds(age: re.Match[str]) -> str:
    return f"{age[1]}{int(age[2]) / 60:g}"
