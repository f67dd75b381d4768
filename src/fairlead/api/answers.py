"""A model's answer in a cascade: parsed, its usage summed with others', and written as the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from fairlead.api.spans import replace_at

_HEAD: Final = ("id", "created", "model", "system_fingerprint")
_COUNTED: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
_encode = msgspec.json.encode


class Answer(msgspec.Struct, frozen=True, gc=False):
    """One model's answer, parsed once."""

    body: bytes
    document: dict[str, Any]
    model: str = (
        ""  # with its endpoint and decision, for the response's headers; empty for the first, whose response has them
    )
    endpoint: str = ""
    decision: str = ""

    @property
    def has_tool_calls(self) -> bool:
        return any(part(choice, "message").get("tool_calls") for choice in _choices(self.document))

    @property
    def tokens(self) -> int:
        """Prompt and answer tokens as the engine counted them; 0 if it did not."""
        total = part(self.document, "usage").get("total_tokens")
        return total if type(total) is int else 0


def read_answer(body: bytes, model: str = "", endpoint: str = "", decision: str = "") -> Answer | None:
    """None if it is not an answer in OpenAI's form."""
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Answer(body, document, model, endpoint, decision) if _choices(document) else None


def with_usage_of_all(answer: Answer, others: Iterable[Answer]) -> Answer:
    """The body of `answer` with the tokens of `others` added to its `usage`; its other bytes stay as they are."""
    usage = part(answer.document, "usage")
    if not usage:
        return answer
    summed = dict(usage)
    for other in others:
        for key in _COUNTED:
            count = part(other.document, "usage").get(key)
            if type(count) is int and type(summed.get(key)) is int:
                summed[key] += count
    body = replace_at(answer.body, {("usage",): _encode(summed)}) if summed != usage else None
    if body is None:
        return answer
    return msgspec.structs.replace(answer, body=body, document={**answer.document, "usage": summed})


def as_events(answer: Answer, *, with_usage: bool) -> bytes:
    """The answer as a stream: one event with the whole content, and one that ends it."""
    document = answer.document
    head: dict[str, Any] = {key: document[key] for key in _HEAD if key in document}
    chat = "message" in _choices(document)[0]
    head["object"] = "chat.completion.chunk" if chat else "text_completion"
    said, ended = [], []
    for position, choice in enumerate(_choices(document)):
        index = choice.get("index", position)
        delta: dict[str, Any] = {"delta": _delta(part(choice, "message"))} if chat else {"text": choice["text"]}
        nothing: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        said.append({"index": index, **delta, "logprobs": choice.get("logprobs"), "finish_reason": None})
        ended.append({"index": index, **nothing, "logprobs": None, "finish_reason": choice.get("finish_reason")})
    events = [{**head, "choices": said}, {**head, "choices": ended}]
    if with_usage:
        events.append({**head, "choices": [], "usage": document.get("usage")})
    return b"".join([*(b"data: %b\n\n" % _encode(event) for event in events), b"data: [DONE]\n\n"])


def _delta(message: dict[str, Any]) -> dict[str, Any]:
    delta = {key: value for key, value in message.items() if value is not None}
    calls = delta.get("tool_calls")
    if isinstance(calls, list):  # in a stream each tool call carries its index
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls) if isinstance(call, dict)]
    return delta


def _choices(document: dict[str, Any]) -> list[dict[str, Any]]:
    choices = document.get("choices")
    found = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    return [choice for choice in found if "text" in choice or isinstance(choice.get("message"), dict)]


def part(document: dict[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}
