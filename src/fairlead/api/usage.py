"""What an observed answer says of its tokens: `usage`, out of a JSON body or a stream of events cut at any byte."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

MOST_TOKENS: Final = 10**8  # of a prompt or an answer: what says more is an odd engine
_MAX_BYTES: Final = 1 << 20  # of a body, or of one event; a longer one is not read
_decode = msgspec.json.Decoder().decode


# Which of the forms below an answer has: a server may report cached tokens in one of them, and not in another.
UsageForm = Literal["openai", "responses", "anthropic", "sglang"]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one answer. None is unknown: engines leave out what they were not told to report."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    form: UsageForm | None = None


UNKNOWN: Final = Usage()


class UsageReader:
    """Feed it the body in the parts in which it comes; `usage` is what was found when it ended."""

    __slots__ = ("_events", "_rest", "usage")

    def __init__(self, *, events: bool) -> None:
        self._events = events
        self._rest = b""
        self.usage = UNKNOWN

    def feed(self, part: bytes) -> None:
        if len(self._rest) + len(part) > _MAX_BYTES:
            self._rest = b""
            return
        self._rest += part
        if self._events:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                if b'"usage"' in line or b'"meta_info"' in line:
                    self._read(line.removeprefix(b"data:"))

    def end(self) -> None:
        if not self._events and self._rest:
            self._read(self._rest)

    def _read(self, document: bytes) -> None:
        try:
            parsed = _decode(document)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # an engine's odd answer teaches nothing
        self.usage = _merged(self.usage, _usage_of(parsed))


def _usage_of(document: Any) -> Usage:
    """OpenAI's forms, the events of Anthropic (`message`) and of Responses (`response`), and SGLang's `meta_info`."""
    for holder in (document, _part(document, "response"), _part(document, "message")):
        usage = _part(holder, "usage") or _part(holder, "meta_info")
        if usage:
            details = _part(usage, "prompt_tokens_details") or _part(usage, "input_tokens_details")
            read = _count(usage, "cache_read_input_tokens")
            prompt = _count(usage, "prompt_tokens", "input_tokens")
            if prompt is not None:  # Anthropic's input tokens are those that no cache took part in
                prompt += (read or 0) + (_count(usage, "cache_creation_input_tokens") or 0)
            cached = _count(details, "cached_tokens") if details else _count(usage, "cached_tokens")
            completion = _count(usage, "completion_tokens", "output_tokens")
            form = None if prompt is None else _form_of(holder, usage)
            return Usage(prompt, read if cached is None else cached, completion, form)
    return UNKNOWN


def _form_of(holder: dict[str, Any], usage: dict[str, Any]) -> UsageForm:
    if "usage" not in holder:
        return "sglang"
    if "input_tokens_details" in usage:
        return "responses"
    return "anthropic" if "input_tokens" in usage or "output_tokens" in usage else "openai"


def _merged(before: Usage, after: Usage) -> Usage:
    """Counts of one stream only grow; of the prompt a later event may leave out what was cached."""
    prompts = [n for n in (before.prompt_tokens, after.prompt_tokens) if n is not None]
    return Usage(
        prompt_tokens=max(prompts, default=None),
        cached_tokens=before.cached_tokens if after.cached_tokens is None else after.cached_tokens,
        completion_tokens=before.completion_tokens if after.completion_tokens is None else after.completion_tokens,
        form=before.form or after.form,
    )


def _part(document: Any, key: str) -> dict[str, Any]:
    found = document.get(key) if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}


def _count(document: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = document.get(key)
        if type(value) is int and 0 <= value <= MOST_TOKENS:
            return value
    return None
