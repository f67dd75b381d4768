"""Rerank, score, classify, pooling, tokens and speech through Envoy: each goes to an engine of the model asked for."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
import msgspec
import pytest

from tests.stack.conftest import Stack, Start, engine

TEXTS: Final = ["the cape turns", "a lighthouse keeper"]
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/rerank": {"query": "lighthouse", "documents": TEXTS},
    "/v1/rerank": {"query": "lighthouse", "documents": TEXTS},
    "/v2/rerank": {"query": "lighthouse", "documents": TEXTS},
    "/score": {"text_1": "lighthouse", "text_2": TEXTS},
    "/v1/score": {"text_1": "lighthouse", "text_2": TEXTS},
    "/classify": {"input": TEXTS},
    "/v1/classify": {"input": TEXTS},
    "/pooling": {"input": TEXTS},
    "/v1/pooling": {"input": TEXTS},
    "/v1/embeddings": {"input": TEXTS},
}
MODELS: Final = ("small", "large")


async def asked(pool: Stack, path: str, model: str, **body: Any) -> dict[str, Any]:
    """The answer of an engine of `model`."""
    answer = await pool.ask("POST", path, msgspec.json.encode({"model": model} | body))
    assert answer.status == 200, answer.body
    assert answer.headers["x-fairlead-model"] == model
    return dict(answer.json())


async def test_each_task_is_done_by_an_engine_of_the_model_that_was_asked_or_of_a_route(stack: Start) -> None:
    pool = await stack(*map(engine, MODELS))
    for model in MODELS:
        for path, body in BODIES.items():
            assert (await asked(pool, path, model, **body))["model"] == model
    ranked = await asked(pool, "/rerank", "large", query="lighthouse keeper", documents=TEXTS)
    assert [result["index"] for result in ranked["results"]] == [1, 0]
    tokens = (await asked(pool, "/tokenize", "small", prompt=TEXTS[0]))["tokens"]
    assert await asked(pool, "/detokenize", "small", tokens=tokens) == {"prompt": TEXTS[0]}
    by_route = await pool.ask("POST", "/v1/rerank", msgspec.json.encode({"model": "auto"} | BODIES["/v1/rerank"]))
    assert by_route.headers["x-fairlead-model"] in MODELS
    assert by_route.json()["results"][0]["index"] == 1


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
async def test_speech_goes_to_an_engine_of_the_model_in_its_form(stack: Start, path: str) -> None:
    pool = await stack(*map(engine, MODELS))
    for model in MODELS:
        form = aiohttp.FormData()
        form.add_field("file", b"\0" * 64_000, filename="speech.wav", content_type="audio/wav")
        form.add_field("model", model)
        async with pool.client.post(pool.url + path, data=form) as response:
            assert response.status == 200, await response.text()
            assert response.headers["x-fairlead-model"] == model
            assert len((await response.json())["text"].split()) == 4
