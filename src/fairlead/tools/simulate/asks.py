"""Parse request bodies for a simulated engine: one reader for each API, all returning the same `Ask`.

Checks what a client can get wrong and a router may meet (types, missing fields), not every field that vLLM knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

COMPLETIONS_MAX_TOKENS: Final = 16  # defaults of vLLM and SGLang where the body sets none
GENERATE_MAX_TOKENS: Final = 128


class AskError(Exception):
    """The engine refuses the request with `status`; the text is for the client."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt, as text or as token ids, and how to answer it. `user_text` is the user's last message."""

    prompt: str | list[int]
    user_text: str
    max_tokens: int | None
    temperature: float
    stream: bool
    include_usage: bool
    ignore_eos: bool
    cache_salt: str = ""


def parse_json(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AskError(f"The body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise AskError("The body must be a JSON object")
    return document


def read_chat(body: dict[str, Any]) -> Ask:
    prompt, user_text = _render(_messages(body), _plain(body.get("tools")))
    limit_name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return _ask(body, prompt, user_text, _limit(body, limit_name))


def read_completions(body: dict[str, Any]) -> Ask:
    prompt = _prompt(body, "prompt")
    limit = _limit(body, "max_tokens")
    return _ask(body, prompt, _text_of(prompt), COMPLETIONS_MAX_TOKENS if limit is None else limit)


def read_responses(body: dict[str, Any]) -> Ask:
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    prompt, user_text = _render(_messages({"input": items}, "input"), _plain(body.get("instructions")))
    return _ask(body, prompt, user_text, _limit(body, "max_output_tokens"))


def read_anthropic(body: dict[str, Any]) -> Ask:
    prompt, user_text = _render(_messages(body), _plain(body.get("system")) + _plain(body.get("tools")))
    limit = _limit(body, "max_tokens")
    if limit is None:
        raise AskError("max_tokens: Field required", param="max_tokens")
    return _ask(body, prompt, user_text, limit)


def read_generate(body: dict[str, Any]) -> Ask:
    prompt = _prompt(body, "text" if body.get("text") is not None else "input_ids")
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise AskError("sampling_params must be an object", param="sampling_params")
    limit = _limit(sampling, "max_new_tokens")
    merged = {**sampling, "stream": body.get("stream")}
    return _ask(merged, prompt, _text_of(prompt), GENERATE_MAX_TOKENS if limit is None else limit)


def read_embeddings(body: dict[str, Any]) -> list[str | list[int]]:
    given = body.get("input")
    several = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    return [_prompt({"input": one}, "input") for one in several]


def read_tokenize(body: dict[str, Any]) -> str | list[int]:
    if body.get("messages") is not None:
        return _render(_messages(body), _plain(body.get("tools")))[0]
    return _prompt(body, "prompt")


def read_detokenize(body: dict[str, Any]) -> list[int]:
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(type(each) is int and each >= 0 for each in tokens):
        raise AskError("tokens must be a list of token ids", param="tokens")
    return tokens


def _ask(body: dict[str, Any], prompt: str | list[int], user_text: str, max_tokens: int | None) -> Ask:
    temperature = body.get("temperature")
    if temperature is None:
        temperature = 1.0
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature <= 2:
        raise AskError("temperature must be a number from 0 to 2", param="temperature")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise AskError("stream_options must be an object", param="stream_options")
    return Ask(
        prompt=prompt,
        user_text=user_text,
        max_tokens=max_tokens,
        temperature=float(temperature),
        stream=body.get("stream") is True,
        include_usage=bool((options or {}).get("include_usage")),
        ignore_eos=body.get("ignore_eos") is True,
        cache_salt=_salt(body),
    )


def _salt(body: dict[str, Any]) -> str:
    salt = body.get("cache_salt")
    if salt is None or (isinstance(salt, str) and salt):
        return salt or ""
    raise AskError("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")


def _limit(body: dict[str, Any], name: str) -> int | None:
    limit = body.get(name)
    if limit is None or (type(limit) is int and limit >= 1):
        return limit
    raise AskError(f"{name} must be at least 1, got {limit!r}.", param=name)


def _prompt(body: dict[str, Any], name: str) -> str | list[int]:
    given = body.get(name)
    if isinstance(given, list) and len(given) == 1 and not isinstance(given[0], int):
        given = given[0]
    is_ids = isinstance(given, list) and all(type(each) is int and 0 <= each < 2**63 for each in given)
    if not isinstance(given, str) and not is_ids:
        raise AskError(f"{name} must be one string or one list of token ids", param=name)
    if not given:
        raise AskError(f"{name} must not be empty", param=name)
    found: str | list[int] = given
    return found


def _text_of(prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else ""


def _messages(body: dict[str, Any], name: str = "messages") -> list[dict[str, Any]]:
    messages = body.get(name)
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise AskError(f"{name} must be a list of at least one message", param=name)
    return messages


def _render(messages: list[dict[str, Any]], before: str) -> tuple[str, str]:
    """The chat template: a conversation is the start of its next turn, as a prefix cache needs it."""
    user_text = ""
    parts = [before] if before else []
    for message in messages:
        text = "".join(_texts(message))
        role = message.get("role") or message.get("type")
        if role == "user":
            user_text = text
        parts.append(f"<|{role}|>\n{text}\n")
    return "".join(parts) + "<|assistant|>\n", user_text


def _texts(value: Any) -> Iterator[str]:
    """The texts of a message, in order: content that is a string or parts, tool calls, tool results."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        if value.get("type") in ("image", "image_url", "input_image", "input_audio"):
            yield "<media>"
            return
        for name in ("text", "content", "output"):
            yield from _texts(value.get(name))
        for name in ("tool_calls", "arguments", "input"):
            yield _plain(value.get(name))


def _plain(value: Any) -> str:
    """A value that templates print as it is; nothing for a missing one."""
    if not value:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
