"""What deploy/ holds for Prometheus and Grafana, on a real Prometheus that scrapes a sidecar at work."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import dashboards
from tests.stack.conftest import Start, engine
from tests.stack.prometheus import DEPLOY, INSTALL, RULES, prometheus
from tests.stack.test_cascade import QUESTION, Judge, judge, routes
from tests.stack.test_learning import ask
from tests.tracing.test_tracer import collecting

__all__ = ["judge"]  # the fixture

ALERT_TESTS = DEPLOY / "prometheus/alerts_test.yaml"
OPERATE = (DEPLOY.parent / "docs/operate.md").read_text(encoding="utf-8")


def promtool(*arguments: object, text: str | None = None) -> str:
    """What promtool prints; it must find no fault."""
    path = shutil.which("promtool")
    assert path is not None, f"promtool is missing: {INSTALL}"
    done = subprocess.run([path, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def test_the_rules_are_ones_that_prometheus_takes() -> None:
    assert "rules found" in promtool("check", "rules", *RULES)


def test_each_alert_fires_by_its_fault_and_none_without() -> None:
    assert "SUCCESS" in promtool("test", "rules", ALERT_TESTS)
    tested = set(re.findall(r'alertname="(\w+)"', ALERT_TESTS.read_text(encoding="utf-8")))
    assert tested == {rule["alert"] for rule in rules() if "alert" in rule}


def test_the_configuration_on_the_page_for_operators_is_one_that_prometheus_takes(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(global:.*?)^```$", OPERATE, re.MULTILINE | re.DOTALL)
    (tmp_path / "deploy").symlink_to(DEPLOY)
    (tmp_path / "prometheus.yaml").write_text(block, encoding="utf-8")
    assert "2 rule files found" in promtool("check", "config", tmp_path / "prometheus.yaml")


def test_the_page_for_operators_names_every_alert() -> None:
    assert set(re.findall(r"`(Fairlead[A-Z]\w+)`", OPERATE)) == {rule["alert"] for rule in rules() if "alert" in rule}


def test_the_dashboards_are_those_of_the_script_that_writes_them() -> None:
    wanted = dashboards.texts()
    assert {path: path.read_text(encoding="utf-8") for path in (DEPLOY / "grafana").glob("*.json")} == wanted


def on_this_prometheus(query: str) -> str:
    for name, value in {"$job": "fairlead", "$instance": ".*", "$__rate_interval": "1m"}.items():
        query = query.replace(name, value)
    return query


def queries() -> Mapping[str, str]:
    """Each query of each dashboard, by where it stands."""
    return {
        f"{path.stem}: {panel['title']}": target["expr"]
        for path in dashboards.texts()
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]
        for target in panel["targets"]
    }


@pytest.mark.slow
async def test_every_query_of_dashboards_and_rules_has_data_when_a_pool_is_at_work(
    stack: Start, tmp_path: Path, judge: Judge
) -> None:
    tuner = {"mode": "shadow", "window": 20, "wash_out": 0, "warm_up": 0}
    observe = {"interval_ms": 100, "answers_per_second": 1000, "messages_per_second": 10_000}
    pool = await stack(engine("small"), engine("large"), routes=routes(judge), tuner=tuner, observe=observe)
    async with prometheus(pool, tmp_path) as scraping:
        expressions = queries()
        empty = list(expressions)
        numbers = count()

        async def has_data() -> bool:
            await asyncio.gather(
                pool.chat(QUESTION, model="answer", headers={"x-session-id": "s"}),
                *[ask(pool, next(numbers)) for _ in range(4)],
            )
            nonlocal empty
            empty = [where for where in empty if not await scraping.ask(on_this_prometheus(expressions[where]))]
            return not empty

        try:
            await pool.until(has_data, "every query has data")
        except AssertionError:
            raise AssertionError(f"these queries have no data: {empty}") from None
        async with pool.client.get(f"{pool.admin_url}/metrics") as response:
            page = await response.text()
        assert promtool("check", "metrics", text=page) == ""
        declared = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
        asked = " ".join([*expressions.values(), *[rule["expr"] for rule in rules()]])
        names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\b(?:fairlead|process)_\w+", asked)}
        optional = {name for name in names if re.match(r"fairlead_(store|context)_?", name)}  # parts that are off here
        assert names - optional <= declared

        pool.config_path.write_text("pool: {endpoints: []}", encoding="utf-8")

        async def fires() -> bool:
            return bool(await scraping.ask('ALERTS{alertname="FairleadReloadRefused", alertstate="firing"}'))

        await pool.until(fires, "the alert fires")


@pytest.mark.slow
async def test_prometheus_leads_from_a_duration_to_the_trace(stack: Start, tmp_path: Path) -> None:
    async with collecting() as collector:
        tracing = {"endpoint": collector.url.removesuffix("/v1/traces"), "sample": 1.0}
        pool = await stack(engine("small"), tracing=tracing)
        async with prometheus(pool, tmp_path) as scraping:
            found: set[str] = set()

            async def leads() -> bool:
                await pool.chat(model="small")
                found.update(await scraping.exemplars("fairlead_request_duration_seconds_bucket", "trace_id"))
                return bool(found)

            await pool.until(leads, "Prometheus has an exemplar")

        async def are_collected() -> bool:
            return found <= {span.trace_id.hex() for span in collector.spans}

        await pool.until(are_collected, "the collector has their traces, which are sent once a second")
