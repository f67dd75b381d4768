"""The tuner on the admin port: what it knows, and freezing it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fairlead.admin.app import admin_app
from fairlead.admin.token import AdminToken
from tests.extproc.world import services_around
from tests.tuning.world import Traffic, tuned

Client = TestClient[Any, Any]


@pytest.fixture
def traffic() -> Traffic:
    traffic, _ = tuned(lambda policy, _number: 100.0 / policy.queue_weight)
    traffic.run(1500)  # it has found its weights, and not yet frozen them
    return traffic


@pytest.fixture
async def admin(traffic: Traffic, tmp_path: Path) -> AsyncIterator[Client]:
    file = tmp_path / "token"
    file.write_text("t" * 16)
    app = admin_app(services_around(traffic.router, lambda: traffic.now_s), token=AdminToken(file))
    async with TestClient(TestServer(app), headers={"Authorization": f"Bearer {'t' * 16}"}) as client:
        yield client


async def test_its_weights_and_trials_are_shown(admin: Client) -> None:
    shown = await (await admin.get("/debug/tuner")).json()
    assert (shown["mode"], shown["state"]) == ("live", "tuning")
    assert shown["configured"] == {"rtt_weight": 1.0, "queue_weight": 1.0}
    assert shown["incumbent"]["queue_weight"] > 1.0
    newest, *_, oldest = shown["trials"]
    assert newest["number"] > oldest["number"] == 1
    assert sum(shown["verdicts"].values()) == newest["number"]


async def test_metrics_tell_weights_and_verdicts(admin: Client, traffic: Traffic) -> None:
    text = await (await admin.get("/metrics")).text()
    assert f'fairlead_tuner_weight{{weight="queue_weight"}} {traffic.router.tuner.incumbent["queue_weight"]}' in text  # type: ignore[attr-defined]
    assert 'fairlead_tuner_trials_total{verdict="accepted"}' in text
    assert "fairlead_tuner_frozen 0.0" in text
    assert "fairlead_tuner_p95_seconds 0." in text


async def test_it_can_be_frozen_and_thawed(admin: Client) -> None:
    assert (await (await admin.post("/debug/tuner", json={"state": "frozen"})).json())["state"] == "frozen"
    assert "fairlead_tuner_frozen 1.0" in await (await admin.get("/metrics")).text()
    assert (await (await admin.post("/debug/tuner", json={"state": "tuning"})).json())["state"] == "tuning"


@pytest.mark.parametrize("body", [b'{"state": "off"}', b"[]", b"{", b'{"state": 1}', b'{"state": "\xff"}'])
async def test_another_state_is_refused_with_what_to_send(admin: Client, body: bytes) -> None:
    answer = await admin.post("/debug/tuner", data=body, headers={"content-type": "application/json"})
    assert (answer.status, "frozen" in await answer.text()) == (400, True)


async def test_a_form_of_another_site_is_refused(admin: Client) -> None:
    answer = await admin.post("/debug/tuner", data='{"state": "frozen"}', headers={"content-type": "text/plain"})
    assert answer.status == 415


async def test_without_a_tuner_the_page_says_how_to_have_one(admin: Client, traffic: Traffic) -> None:
    traffic.router.use(traffic.policy)
    answer = await admin.get("/debug/tuner")
    assert (answer.status, "tuner.mode" in await answer.text()) == (404, True)
    assert "fairlead_tuner" not in await (await admin.get("/metrics")).text()
