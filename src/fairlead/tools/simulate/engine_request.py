"""What a simulated engine is asked to compute, and what its steps report of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from fairlead.tools.simulate.parameters import EngineParameters


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as the engine sees it.

    `output_tokens` is the length of its answer, which a real engine learns only at the end; 0 stands for an embedding.
    `block_hashes` names the full blocks of the prompt, each hash standing for the whole prefix up to it; if the answer
    is known, it may continue with the blocks of the answer.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    block_hashes: Sequence[int] = ()
    every_token: bool = False
    adapter: str = ""  # none: the base model
    is_fetched: bool = False  # its named blocks come from another engine, once there is room for them


class EventKind(Enum):
    FIRST_TOKEN = "first token"
    TOKEN = "token"
    FINISHED = "finished"
    PREEMPTED = "preempted"


class Event(NamedTuple):
    """A step's event for one request. A request's last token comes with FINISHED, an only token with both."""

    kind: EventKind
    request_id: str
    at_ms: float
    generated_tokens: int
    cached_tokens: int  # prompt tokens cached when it was first admitted


class RequestRefusedError(ValueError):
    """The request can never fit this engine; the text says why."""


def refusal(request: EngineRequest, parameters: EngineParameters) -> str | None:
    """Why the request can never fit an engine; None if it can."""
    tokens = request.prompt_tokens + request.output_tokens
    if request.prompt_tokens < 1 or request.output_tokens < 0:
        return "a request needs at least one prompt token"
    if tokens > parameters.max_model_len:
        return f"{tokens} tokens are more than max_model_len {parameters.max_model_len}"
    kept_tokens = max(tokens - 1, request.prompt_tokens)  # the last token of an answer is never read again
    if kept_tokens > parameters.num_blocks * parameters.block_size:
        return f"{tokens} tokens are more than the KV cache of {parameters.num_blocks * parameters.block_size}"
    return None
