"""The admin port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fairlead.telemetry.admin import admin_app
from fairlead.telemetry.metrics import FairleadCollector
from fairlead.telemetry.recorder import KEPT_DECISIONS
from tests.extproc.world import Conversation, chat, request_body, request_headers, response_headers, response_trailers

Client = TestClient[Any, Any]


@pytest.fixture
def conversation() -> Conversation:
    return Conversation()


@pytest.fixture
async def admin(conversation: Conversation) -> AsyncIterator[Client]:
    shared = conversation.shared
    collector = FairleadCollector(shared.router, shared.recorder, shared.learner, lambda: 0)
    app = admin_app(shared.recorder, collector, lambda: shared.router.pool.knows("small"), lambda: {"routes": {}})
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_it_is_alive_and_ready(admin: Client) -> None:
    assert [(await admin.get(path)).status for path in ("/healthz", "/readyz", "/metrics", "/debug/config")] == [
        200
    ] * 4


async def test_decisions_come_newest_first_and_as_many_as_asked(admin: Client, conversation: Conversation) -> None:
    for number in range(3):
        one = Conversation(conversation.shared)
        one.say(request_headers(extra={"x-request-id": f"id-{number}"}), request_body(chat("large")))
        one.say(response_headers(), response_trailers())
    shown = (await (await admin.get("/debug/decisions?limit=2")).json())["decisions"]
    assert [decision["request_id"] for decision in shown] == ["id-2", "id-1"]
    assert shown[0]["best"][0]["terms"]["total_ms"] == pytest.approx(shown[0]["best"][0]["score"])


async def test_a_limit_that_is_no_number_is_told(admin: Client) -> None:
    response = await admin.get("/debug/decisions?limit=-1")
    assert (response.status, "must be a number" in await response.text()) == (400, True)


async def test_only_the_last_decisions_are_kept(conversation: Conversation) -> None:
    for _ in range(KEPT_DECISIONS + 10):
        one = Conversation(conversation.shared)
        one.say(request_headers(), request_body(chat()))
        one.stream.close()
    assert len(conversation.shared.recorder.decisions) == KEPT_DECISIONS
