"""What a simulated engine answers without generating: embeddings, rerank, score, classify, pooling, in vLLM's shapes.

A real server has one of these tasks, as its model can; a simulated one has all. Each reader gives the prompts that the
engine has to compute, each writer the answer. A score is how many of the query's words a document has, so that a demo
ranks as one expects; vectors and classes depend on the tokens alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import xxhash

from fairlead.api.paths import EMBEDDINGS
from fairlead.tools.simulate import asks
from fairlead.tools.simulate.asks import AskError
from fairlead.tools.simulate.tokens import Tokens

_VECTOR_SIZE: Final = 8
_CLASSES: Final = ("LABEL_0", "LABEL_1")
_WORD: Final = re.compile(r"\w+")

Prompts = Sequence[str | list[int]]
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PoolingFormat:
    read: Callable[[Body], Prompts]
    write: Callable[[Body, str, Sequence[Tokens]], Body]  # of the body, the model's name, and the prompts' tokens


def _embeddings(_: Body, model: str, prompts: Sequence[Tokens]) -> Body:
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(prompt)} for index, prompt in enumerate(prompts)
    ]
    return {"object": "list", "model": model, "data": data, "usage": _usage(prompts)}


def _read_rerank(body: Body) -> list[str]:
    query, documents = body.get("query"), body.get("documents")
    if not isinstance(query, str) or not query:
        raise AskError("query must be a string", param="query")
    if not isinstance(documents, list) or not documents or not all(isinstance(each, str) for each in documents):
        raise AskError("documents must be a list of strings", param="documents")
    top = body.get("top_n")
    if top is not None and (type(top) is not int or top < 0):
        raise AskError("top_n must be a whole number", param="top_n")
    return [f"{query}\n{document}" for document in documents]


def _rerank(body: Body, model: str, prompts: Sequence[Tokens]) -> Body:
    query, documents = body["query"], body["documents"]
    scores = [_score(query, document) for document in documents]
    best_first = sorted(range(len(documents)), key=lambda index: -scores[index])
    results = [
        {"index": index, "document": {"text": documents[index], "multi_modal": None}, "relevance_score": scores[index]}
        for index in best_first[: body.get("top_n") or None]
    ]
    usage = {name: count for name, count in _usage(prompts).items() if name != "completion_tokens"}
    return {"id": f"rerank-{uuid4().hex}", "model": model, "usage": usage, "results": results}


def _pairs(body: Body) -> list[tuple[str, str]]:
    """Text with text; one first text goes with each second one."""
    first, second = (_texts(body, *names) for names in (("text_1", "queries"), ("text_2", "documents")))
    if len(first) not in (1, len(second)):
        raise AskError(
            f"text_1 has {len(first)} texts and text_2 has {len(second)}; give one, or as many", param="text_1"
        )
    return list(zip(first * (len(second) if len(first) == 1 else 1), second, strict=True))


def _read_score(body: Body) -> list[str]:
    return [f"{one}\n{other}" for one, other in _pairs(body)]


def _write_score(body: Body, model: str, prompts: Sequence[Tokens]) -> Body:
    data = [{"index": index, "object": "score", "score": _score(*pair)} for index, pair in enumerate(_pairs(body))]
    return _list("score", model, data, prompts)


def _classify(_: Body, model: str, prompts: Sequence[Tokens]) -> Body:
    data = []
    for index, prompt in enumerate(prompts):
        share = (_vector(prompt)[0] + 1.0) / 2.0
        probabilities = [1.0 - share, share]
        label = _CLASSES[probabilities.index(max(probabilities))]
        data.append({"index": index, "label": label, "probs": probabilities, "num_classes": len(_CLASSES)})
    return _list("classify", model, data, prompts)


def _pooling(_: Body, model: str, prompts: Sequence[Tokens]) -> Body:
    data = [{"index": index, "object": "pooling", "data": _vector(prompt)} for index, prompt in enumerate(prompts)]
    return _list("pool", model, data, prompts)


def _read_input_or_chat(body: Body) -> Prompts:
    return [asks.read_tokenize(body)] if body.get("messages") is not None else asks.read_embeddings(body)


def _texts(body: Body, *names: str) -> list[str]:
    """The texts of the first of `names` that is there: newer vLLMs have other names for the same."""
    name = next((each for each in names if body.get(each) is not None), names[0])
    given = body.get(name)
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise AskError(f"{name} must be a string or a list of strings", param=name)
    return texts


def _list(kind: str, model: str, data: list[Body], prompts: Sequence[Tokens]) -> Body:
    return {
        "id": f"{kind}-{uuid4().hex}", "object": "list", "created": int(time.time()), "model": model, "data": data,
        "usage": _usage(prompts),
    }  # fmt: skip


def _usage(prompts: Sequence[Tokens]) -> Body:
    total = sum(prompt.count for prompt in prompts)
    return {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0}


def _score(query: str, text: str) -> float:
    """The share of the query's words that `text` has."""
    wanted = set(_WORD.findall(query.lower()))
    return len(wanted.intersection(_WORD.findall(text.lower()))) / max(1, len(wanted))


def _vector(prompt: Tokens) -> list[float]:
    """Numbers from -1 to 1 that depend on the tokens alone."""
    raw = prompt.ids.tobytes()
    return [xxhash.xxh32_intdigest(raw, seed) / 2**31 - 1 for seed in range(_VECTOR_SIZE)]


_RERANK: Final = PoolingFormat(_read_rerank, _rerank)
_SCORE: Final = PoolingFormat(_read_score, _write_score)
_CLASSIFY: Final = PoolingFormat(_read_input_or_chat, _classify)
_POOLING: Final = PoolingFormat(_read_input_or_chat, _pooling)
EMBEDDING_FORMAT: Final = PoolingFormat(asks.read_embeddings, _embeddings)
VLLM_FORMATS: Final[Mapping[str, PoolingFormat]] = {
    EMBEDDINGS: EMBEDDING_FORMAT,
    "/rerank": _RERANK, "/v1/rerank": _RERANK, "/v2/rerank": _RERANK,
    "/score": _SCORE, "/v1/score": _SCORE,
    "/classify": _CLASSIFY, "/v1/classify": _CLASSIFY,
    "/pooling": _POOLING, "/v1/pooling": _POOLING,
}  # fmt: skip
SGLANG_FORMATS: Final[Mapping[str, PoolingFormat]] = {EMBEDDINGS: EMBEDDING_FORMAT}  # its others look otherwise
