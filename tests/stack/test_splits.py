"""A name that is shared out by weight, through a real Envoy: the engine gets its own, the client gets the client's."""

from __future__ import annotations

import json

from tests.stack.conftest import Start, engine


async def test_the_client_sees_the_name_that_it_asked_for(stack: Start) -> None:
    gateway, routes = {"answer_model": "asked"}, {"chat": {"split": {"large": 1}}, "auto": ["small", "large"]}
    pool = await stack(engine(), engine("large"), routes=routes, gateway=gateway)
    whole = await pool.chat(model="chat")
    assert (whole.status, whole.json()["model"], whole.headers["x-fairlead-model"]) == (200, "chat", "large")
    streamed = await pool.chat(model="chat", stream=True, max_tokens=20)
    lines = [line.removeprefix("data: ") for line in streamed.body.decode().splitlines() if line.startswith("data: {")]
    assert len(lines) > 1
    assert {json.loads(line)["model"] for line in lines} == {"chat"}
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert (await pool.chat(model="small")).json()["model"] == "small"
