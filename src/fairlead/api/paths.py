"""Which paths of an engine are read how.

Every body is read, so that one that names a model goes to an engine of that model. Of the paths below more is known:
which of them generate, and so fill a cache and bind a session, and which of them cost the engine no prefill.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode

CHAT_COMPLETIONS: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
EMBEDDINGS: Final = "/v1/embeddings"
MESSAGES: Final = "/v1/messages"  # Anthropic
GENERATE: Final = "/generate"  # SGLang
TOKEN_GENERATE: Final = "/inference/v1/generate"  # vLLM
INVOCATIONS: Final = "/invocations"  # SageMaker's, as vLLM and SGLang serve it
MODELS: Final = "/v1/models"
TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"

MODEL_OPTIONAL_PATHS: Final = frozenset({GENERATE, TOKEN_GENERATE, INVOCATIONS})
GENERATION_PATHS: Final = MODEL_OPTIONAL_PATHS | {CHAT_COMPLETIONS, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES}
BINDING_PATHS: Final = GENERATION_PATHS - {EMBEDDINGS}  # where a session's next turn finds what this one cached
TOKENIZER_PATHS: Final = frozenset({TOKENIZE, DETOKENIZE, COUNT_TOKENS})  # nothing is prefilled
JUDGED_PATHS: Final = frozenset({CHAT_COMPLETIONS, COMPLETIONS})  # a cascade's judge knows these answers
REUSE_PATHS: Final = frozenset({CHAT_COMPLETIONS, COMPLETIONS, RESPONSES, MESSAGES, GENERATE})  # known to context reuse

# OpenAI, as vLLM and SGLang serve it.
_OPENAI: Final = (
    CHAT_COMPLETIONS,
    "/v1/chat/completions/batch",
    "/v1/chat/completions/render",
    COMPLETIONS,
    "/v1/completions/render",
    RESPONSES,
    "/v1/responses/*",
    EMBEDDINGS,
    "/v1/moderations",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/v1/realtime",
    MODELS,
    "/v1/models/*",
)
_ANTHROPIC: Final = (MESSAGES, COUNT_TOKENS)
_VLLM: Final = (
    "/classify",
    DETOKENIZE,
    TOKEN_GENERATE,
    INVOCATIONS,
    "/pooling",
    "/rerank",
    "/score",
    TOKENIZE,
    "/v1/classify",
    "/v1/pooling",
    "/v1/rerank",
    "/v1/score",
    "/v2/embed",
    "/v2/rerank",
)
_SGLANG: Final = (GENERATE, "/encode", "/v1/detokenize", "/v1/tokenize")
_HEALTH: Final = ("/health", "/ping", "/version")
# What a client may ask of an engine: the inference APIs, the list of models, and health. `*`: anything below.
OPEN_PATHS: Final = (*_OPENAI, *_ANTHROPIC, *_VLLM, *_SGLANG, *_HEALTH)

_MOST_QUERY_CHARACTERS: Final = 8192


def plain_path(path: str) -> str:
    """`path` without its query, percent-escapes and closing slash: all forms of it that an engine takes for one."""
    path = path.partition("?")[0]
    if "%" in path:  # an engine would decode it, so an escaped path must not pass unread
        path = unquote(path)
    return path.rstrip("/") or "/"


def generation_path(path: str) -> str | None:
    """The plain path of a generation API, or None for any other path."""
    path = plain_path(path)
    return path if path in GENERATION_PATHS else None


def query_model(path: str) -> str | None:
    """The model that a path names in its query, as `/v1/realtime?model=NAME` does."""
    query = path.partition("?")[2]
    if "model=" not in query or len(query) > _MOST_QUERY_CHARACTERS:
        return None
    named = parse_qs(query, max_num_fields=None).get("model")
    return named[-1] if named else None


def with_query_model(path: str, model: str) -> str:
    """`path` with another model in its query."""
    path, _, query = path.partition("?")
    fields = [(name, model if name == "model" else value) for name, value in parse_qsl(query, keep_blank_values=True)]
    return f"{path}?{urlencode(fields)}"
