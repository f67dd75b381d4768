"""A completion whose prompt another engine computes first: that engine's request, which asks for a single token.

Both engines must read the same tokens. What makes them read others, or needs the prompt computed where the answer is,
is left alone. Source: vLLM's examples of disaggregated prefill, and what its connectors check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead.api.edits import with_values
from fairlead.api.paths import CHAT_COMPLETIONS, COMPLETIONS
from fairlead.api.spans import Span, object_spans

SPLIT_PATHS: Final = frozenset({CHAT_COMPLETIONS, COMPLETIONS})
PARAMETERS: Final = "kv_transfer_params"

_OFF: Final = (b"null", b"false")
# Several answers; log-probabilities of the prompt, a prompt cut by how long the answer may be, prompts without text.
_SEVERAL: Final = ("n", "best_of")
_NEEDS_ITS_PROMPT: Final = ("use_beam_search", "echo", "prompt_logprobs", "truncate_prompt_tokens", "prompt_embeds")
_ONE: Final[Mapping[str, bytes]] = {"max_tokens": b"1", "stream": b"false", "ignore_eos": b"true"}
_IF_THERE: Final[Mapping[str, bytes]] = {
    "max_completion_tokens": b"1",
    "min_tokens": b"0",
    "stream_options": b"null",
    "stop": b"null",  # a connector keeps the KV only of an answer that ended by its length
    "stop_token_ids": b"null",
}


def spans_to_split(body: bytes) -> Mapping[str, Span] | None:
    """Where the values of `body` stand; None if one engine must do all of it."""
    spans = object_spans(body)
    if spans is None:
        return None
    values = {key: body[slice(*spans[key])] for key in (*_SEVERAL, *_NEEDS_ITS_PROMPT) if key in spans}
    if any(values.get(key, b"1") not in (b"1", b"null") for key in _SEVERAL):
        return None
    if any(values.get(key, b"null") not in _OFF for key in _NEEDS_ITS_PROMPT):
        return None
    return None if "prompt" in spans and _are_several(body, spans["prompt"]) else spans


def of_one_token(body: bytes, spans: Mapping[str, Span], parameters: bytes) -> bytes:
    """`body` as the engine gets it that computes the prompt, with the connector's `parameters` in JSON."""
    there = {key: value for key, value in _IF_THERE.items() if key in spans}
    return with_values(body, spans, {**_ONE, **there, PARAMETERS: parameters})


def _are_several(body: bytes, prompt: Span) -> bool:
    """Whether it is a list, and not one of token ids."""
    first = body[prompt[0] : prompt[1]][:64].split()
    start = b"".join(first)
    return start[:1] == b"[" and not start[1:2].isdigit()
