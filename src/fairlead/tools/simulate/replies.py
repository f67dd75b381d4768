"""How each API writes an answer, whole and as server-sent events, in the shapes that vLLM and SGLang send.

A `ReplyFormat` is a reader of requests and four writers; `FORMATS` has one for each path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead.api.paths import CHAT_COMPLETIONS, COMPLETIONS, GENERATE, MESSAGES, RESPONSES
from fairlead.tools.simulate import asks

_encode = msgspec.json.Encoder().encode
_DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with its counts; during streaming, `tokens` are those of the whole answer."""

    id: str
    created_s: int
    model: str
    prompt_tokens: int
    cached_tokens: int
    tokens: tuple[str, ...]
    cut: bool

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    @property
    def finish_reason(self) -> str:
        return "length" if self.cut else "stop"

    def usage(self) -> dict[str, Any]:
        """In OpenAI's form, with vLLM's `--enable-prompt-tokens-details`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.tokens),
            "total_tokens": self.prompt_tokens + len(self.tokens),
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """`opening` comes with the first token, `delta` with each piece (and the text so far), `closing` at the end.

    With `opens_early` it comes before anything is computed: vLLM and SGLang say at once that a response was created.
    """

    read: Callable[[dict[str, Any]], asks.Ask]
    whole: Callable[[Reply], dict[str, Any]]
    opening: Callable[[Reply], bytes]
    delta: Callable[[Reply, str, int], bytes]  # the piece, and how many tokens are sent with it and before
    closing: Callable[[Reply, bool], bytes]  # with usage or not, where the API leaves the choice
    opens_early: bool = False


def _event(payload: dict[str, Any], name: str | None = None) -> bytes:
    data = b"data: %b\n\n" % _encode(payload)
    return data if name is None else b"event: %b\n%b" % (name.encode(), data)


def _nothing(_reply: Reply) -> bytes:
    return b""


# --- OpenAI chat and completions ---


def _openai(reply: Reply, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "id": reply.id,
        "object": kind,
        "created": reply.created_s,
        "model": reply.model,
        "choices": choices,
        **more,
    }


def _chat_whole(reply: Reply) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish_reason}
    return _openai(reply, "chat.completion", [choice], usage=reply.usage())


def _chat_chunk(reply: Reply, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _event(_openai(reply, "chat.completion.chunk", [choice]))


def _chat_opening(reply: Reply) -> bytes:
    return _chat_chunk(reply, {"role": "assistant", "content": ""})


def _chat_delta(reply: Reply, piece: str, _sent: int) -> bytes:
    return _chat_chunk(reply, {"content": piece})


def _chat_closing(reply: Reply, include_usage: bool) -> bytes:
    usage = _event(_openai(reply, "chat.completion.chunk", [], usage=reply.usage())) if include_usage else b""
    return _chat_chunk(reply, {}, reply.finish_reason) + usage + _DONE


def _completions_whole(reply: Reply) -> dict[str, Any]:
    choice = {"index": 0, "text": reply.text, "logprobs": None, "finish_reason": reply.finish_reason}
    return _openai(reply, "text_completion", [choice], usage=reply.usage())


def _completions_chunk(reply: Reply, text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return _event(_openai(reply, "text_completion", [choice]))


def _completions_delta(reply: Reply, piece: str, _sent: int) -> bytes:
    return _completions_chunk(reply, piece)


def _completions_closing(reply: Reply, include_usage: bool) -> bytes:
    usage = _event(_openai(reply, "text_completion", [], usage=reply.usage())) if include_usage else b""
    return _completions_chunk(reply, "", reply.finish_reason) + usage + _DONE


# --- OpenAI responses ---


def _responses_object(
    reply: Reply, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "id": reply.id,
        "object": "response",
        "created_at": reply.created_s,
        "model": reply.model,
        "status": status,
        "output": output,
        "usage": usage,
    }


def _responses_whole(reply: Reply) -> dict[str, Any]:
    status = "incomplete" if reply.cut else "completed"
    content = [{"type": "output_text", "text": reply.text, "annotations": []}]
    message = {"type": "message", "id": f"msg_{reply.id}", "role": "assistant", "status": status, "content": content}
    usage = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens},
        "output_tokens": len(reply.tokens),
        "total_tokens": reply.prompt_tokens + len(reply.tokens),
    }
    return _responses_object(reply, status, [message], usage)


def _responses_opening(reply: Reply) -> bytes:
    created = {"type": "response.created", "response": _responses_object(reply, "in_progress", [], None)}
    return _event(created, "response.created")


def _responses_delta(reply: Reply, piece: str, _sent: int) -> bytes:
    place = {"item_id": f"msg_{reply.id}", "output_index": 0, "content_index": 0}
    return _event({"type": "response.output_text.delta", **place, "delta": piece}, "response.output_text.delta")


def _responses_closing(reply: Reply, _include_usage: bool) -> bytes:
    name = "response.incomplete" if reply.cut else "response.completed"
    return _event({"type": name, "response": _responses_whole(reply)}, name)


# --- Anthropic messages ---


def _anthropic_usage(reply: Reply, output_tokens: int) -> dict[str, int]:
    """`input_tokens` leaves out what the cache gave, as Anthropic counts."""
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": output_tokens,
    }


def _anthropic_message(reply: Reply, content: list[dict[str, str]], stop: str | None, output: int) -> dict[str, Any]:
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": _anthropic_usage(reply, output),
    }


def _anthropic_stop(reply: Reply) -> str:
    return "max_tokens" if reply.cut else "end_turn"


def _anthropic_whole(reply: Reply) -> dict[str, Any]:
    content = [{"type": "text", "text": reply.text}]
    return _anthropic_message(reply, content, _anthropic_stop(reply), len(reply.tokens))


def _anthropic_opening(reply: Reply) -> bytes:
    start = {"type": "message_start", "message": _anthropic_message(reply, [], None, 0)}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    return _event(start, "message_start") + _event(block, "content_block_start")


def _anthropic_delta(_reply: Reply, piece: str, _sent: int) -> bytes:
    delta = {"type": "text_delta", "text": piece}
    return _event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")


def _anthropic_closing(reply: Reply, _include_usage: bool) -> bytes:
    delta = {"stop_reason": _anthropic_stop(reply), "stop_sequence": None}
    end = {"type": "message_delta", "delta": delta, "usage": _anthropic_usage(reply, len(reply.tokens))}
    return (
        _event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        + _event(end, "message_delta")
        + _event({"type": "message_stop"}, "message_stop")
    )


# --- SGLang generate ---


def _generate(reply: Reply, sent: int, finished: bool) -> dict[str, Any]:
    meta = {
        "id": reply.id,
        "finish_reason": {"type": reply.finish_reason} if finished else None,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": sent,
        "cached_tokens": reply.cached_tokens,
    }
    return {"text": "".join(reply.tokens[:sent]), "meta_info": meta}


def _generate_whole(reply: Reply) -> dict[str, Any]:
    return _generate(reply, len(reply.tokens), finished=True)


def _generate_delta(reply: Reply, _piece: str, sent: int) -> bytes:
    """SGLang sends the whole text so far each time."""
    return _event(_generate(reply, sent, finished=sent == len(reply.tokens)))


def _generate_closing(_reply: Reply, _include_usage: bool) -> bytes:
    return _DONE


_COMPLETIONS = (_completions_whole, _nothing, _completions_delta, _completions_closing)
_RESPONSES = (_responses_whole, _responses_opening, _responses_delta, _responses_closing)
_ANTHROPIC = (_anthropic_whole, _anthropic_opening, _anthropic_delta, _anthropic_closing)

FORMATS: Final[Mapping[str, ReplyFormat]] = {
    CHAT_COMPLETIONS: ReplyFormat(asks.read_chat, _chat_whole, _chat_opening, _chat_delta, _chat_closing),
    COMPLETIONS: ReplyFormat(asks.read_completions, *_COMPLETIONS),
    RESPONSES: ReplyFormat(asks.read_responses, *_RESPONSES, opens_early=True),
    MESSAGES: ReplyFormat(asks.read_anthropic, *_ANTHROPIC),
    GENERATE: ReplyFormat(asks.read_generate, _generate_whole, _nothing, _generate_delta, _generate_closing),
}
