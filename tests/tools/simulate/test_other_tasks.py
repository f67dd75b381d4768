"""What a simulated engine answers besides generated text, in the shapes of vLLM's own answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fairlead.tools.simulate.server import EngineOptions, RunningEngine, running_engine
from tests.tools.simulate.conftest import FAST, client_of

DOCUMENTS = ["the cape turns", "a lighthouse shows ships the way", "what a lighthouse keeper does all night"]
QUERY = "what does a lighthouse keeper do"
SECOND = b"\0" * 32_000  # of sound


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_rerank_gives_documents_with_their_places_the_nearest_first(client: httpx.AsyncClient, path: str) -> None:
    answer = await post(client, path, model="m", query=QUERY, documents=DOCUMENTS)
    assert [result["index"] for result in answer["results"]] == [2, 1, 0]
    assert answer["results"][0]["document"]["text"] == DOCUMENTS[2]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert 0.0 < scores[0] <= 1.0
    assert answer["id"].startswith("rerank-")
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0


async def test_rerank_gives_no_more_than_asked_for(client: httpx.AsyncClient) -> None:
    answer = await post(client, "/rerank", query=QUERY, documents=DOCUMENTS, top_n=1)
    assert [result["index"] for result in answer["results"]] == [2]


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
async def test_score_gives_one_for_each_pair(client: httpx.AsyncClient, names: tuple[str, str]) -> None:
    one_with_many = await post(client, "/v1/score", **dict(zip(names, (QUERY, DOCUMENTS), strict=True)))
    assert [(row["index"], row["object"]) for row in one_with_many["data"]] == [(n, "score") for n in range(3)]
    pairs = await post(client, "/score", **dict(zip(names, ([QUERY] * 3, DOCUMENTS), strict=True)))
    assert [row["score"] for row in pairs["data"]] == [row["score"] for row in one_with_many["data"]]
    assert pairs["object"] == "list"
    refused = await client.post("/score", json=dict(zip(names, ([QUERY] * 2, DOCUMENTS), strict=True)))
    assert refused.status_code == 400


async def test_classify_gives_a_label_and_probabilities_that_sum_to_one(client: httpx.AsyncClient) -> None:
    answer = await post(client, "/classify", input=DOCUMENTS)
    assert len(answer["data"]) == 3
    for row in answer["data"]:
        assert sum(row["probs"]) == pytest.approx(1.0)
        assert row["num_classes"] == len(row["probs"]) == 2
        assert row["label"] == f"LABEL_{row['probs'].index(max(row['probs']))}"


async def test_pooling_gives_a_vector_for_texts_and_for_messages(client: httpx.AsyncClient) -> None:
    texts = await post(client, "/pooling", input=DOCUMENTS)
    assert [(row["index"], row["object"], len(row["data"])) for row in texts["data"]] == [
        (number, "pooling", 8) for number in range(3)
    ]
    chat = await post(client, "/v1/pooling", messages=[{"role": "user", "content": "hello"}])
    assert len(chat["data"]) == 1
    assert chat["usage"]["completion_tokens"] == 0


async def test_what_is_tokenized_is_detokenized_again(client: httpx.AsyncClient) -> None:
    tokens = (await post(client, "/tokenize", prompt="the light on the cape"))["tokens"]
    assert await post(client, "/detokenize", tokens=tokens) == {"prompt": "the light on the cape"}
    assert await post(client, "/detokenize", tokens=[10**15]) == {"prompt": "\ufffd"}


async def test_tokens_of_messages_are_counted_as_anthropic_does(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "hello"}]
    counted = await post(client, "/v1/messages/count_tokens", messages=messages)
    answered = await post(client, "/v1/messages", messages=messages, max_tokens=4)
    assert counted == {"input_tokens": answered["usage"]["input_tokens"]}


def form(**fields: str) -> dict[str, Any]:
    return {"files": {"file": ("speech.wav", 3 * SECOND, "audio/wav")}, "data": {"model": "m", **fields}}


async def test_speech_becomes_text_as_long_as_the_file(client: httpx.AsyncClient) -> None:
    heard = (await client.post("/v1/audio/transcriptions", **form())).json()
    assert heard["usage"] == {"type": "duration", "seconds": 3}
    assert len(heard["text"].split()) == 6
    plain = await client.post("/v1/audio/transcriptions", **form(response_format="text"))
    assert plain.text == heard["text"]
    assert set((await client.post("/v1/audio/translations", **form())).json()) == {"text"}


async def test_speech_is_streamed_in_chunks(client: httpx.AsyncClient) -> None:
    stream = (await client.post("/v1/audio/transcriptions", **form(stream="true"))).text
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"transcription.chunk"}
    assert len("".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks).split()) == 6
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


MISTAKES: dict[str, Callable[[httpx.AsyncClient], Any]] = {
    "query": lambda client: client.post("/rerank", json={"documents": ["a"]}),
    "documents": lambda client: client.post("/rerank", json={"query": "a", "documents": [1]}),
    "top_n": lambda client: client.post("/rerank", json={"query": "a", "documents": ["a"], "top_n": -1}),
    "text_1": lambda client: client.post("/score", json={"text_2": "a"}),
    "input": lambda client: client.post("/classify", json={}),
    "tokens": lambda client: client.post("/detokenize", json={"tokens": "a"}),
    "file": lambda client: client.post("/v1/audio/transcriptions", files={"other": b"x"}),
    "response_format": lambda client: client.post("/v1/audio/transcriptions", **form(response_format="srt")),
}


@pytest.mark.parametrize("named", MISTAKES)
async def test_a_mistake_is_a_400_that_names_the_field(client: httpx.AsyncClient, named: str) -> None:
    answer = await MISTAKES[named](client)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == named


async def test_another_model_than_the_served_one_is_a_404(client: httpx.AsyncClient) -> None:
    assert (await client.post("/rerank", json={"model": "x", "query": "a", "documents": ["a"]})).status_code == 404
    assert (await client.post("/v1/audio/translations", **form(model="x"))).status_code == 404


async def test_the_engine_has_computed_what_was_ranked(client: httpx.AsyncClient, engine: RunningEngine) -> None:
    """A prompt that was ranked before is in the cache when it is asked for again."""
    await post(client, "/rerank", query="word " * 200, documents=["x"])
    again = await post(client, "/v1/completions", prompt="word " * 200 + "\nx", max_tokens=1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    assert engine.engine.waiting == 0


async def test_sglang_has_those_of_its_answers_that_look_like_this() -> None:
    async with (
        running_engine(EngineOptions(model="m", kind="sglang", parameters=FAST)) as engine,
        client_of(engine) as client,
    ):
        assert (await client.post("/rerank", json={"query": "a", "documents": ["a"]})).status_code == 404
        tokens = (await post(client, "/tokenize", prompt="cape"))["tokens"]
        assert await post(client, "/detokenize", tokens=tokens) == {"text": "cape"}
