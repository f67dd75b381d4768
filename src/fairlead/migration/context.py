"""The token ids of a session's context, as its engine tokenizes the current request.

Only what shapes the prompt goes to the engine's /tokenize, as undecoded slices of the body. What cannot be copied by
token ids alone (images, several prompts at once, other APIs, parameters that /tokenize does not know) is refused. A
salt of the cache is no part of the prompt: it goes with both completions of the copy, because KV of another salt is
another KV.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead.api.paths import CHAT_COMPLETIONS, COMPLETIONS

_Slice = msgspec.Raw | msgspec.UnsetType
_UNSET: Final = msgspec.UNSET
_MEDIA: Final = (b'"image', b'"input_image', b'"input_audio', b'"audio_url', b'"video_url', b'"file')


class NotMovedError(Exception):
    """The session stays where it is, through no engine's fault; `reason` is for counting."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Chat(msgspec.Struct, omit_defaults=True):
    """The fields of a chat completion that vLLM's /tokenize reads."""

    messages: msgspec.Raw
    model: str = ""
    tools: _Slice = _UNSET
    chat_template: _Slice = _UNSET
    chat_template_kwargs: _Slice = _UNSET
    add_generation_prompt: _Slice = _UNSET
    continue_final_message: _Slice = _UNSET
    add_special_tokens: _Slice = _UNSET


class _Completion(msgspec.Struct, omit_defaults=True):
    prompt: msgspec.Raw
    model: str = ""
    add_special_tokens: _Slice = _UNSET


_KINDS: Final[dict[str, type[_Chat] | type[_Completion]]] = {
    CHAT_COMPLETIONS: _Chat,
    COMPLETIONS: _Completion,
}


class _Unsaid(msgspec.Struct):
    """What shapes a prompt of vLLM's and /tokenize does not take (0.32)."""

    documents: _Slice = _UNSET
    reasoning_effort: _Slice = _UNSET
    tool_choice: _Slice = _UNSET
    truncate_prompt_tokens: _Slice = _UNSET
    prompt_embeds: _Slice = _UNSET

    @property
    def is_any(self) -> bool:
        others = self.documents, self.reasoning_effort, self.truncate_prompt_tokens, self.prompt_embeds
        said = [bytes(value) for value in others if value is not _UNSET]
        without_tools = self.tool_choice is not _UNSET and bytes(self.tool_choice) == b'"none"'
        return without_tools or any(value not in (b"null", b"[]") for value in said)


class _Salted(msgspec.Struct):
    cache_salt: str | None = None


def cache_salt(body: bytes) -> str:
    """What keeps the request's cache apart from others of the same tokens; empty if nothing. Raises NotMovedError."""
    try:
        return msgspec.json.decode(body, type=_Salted).cache_salt or ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotMovedError("body") from None


def tokenize_request(path: str, body: bytes, model: str) -> bytes:
    """What to POST to /tokenize for the prompt of `body`. Raises NotMovedError."""
    kind = _KINDS.get(path)
    if kind is None:
        raise NotMovedError("api")
    try:
        asked = msgspec.json.decode(body, type=kind)
        unsaid = msgspec.json.decode(body, type=_Unsaid)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotMovedError("body") from None
    if unsaid.is_any:  # another prompt would be computed at a busy engine, and copied
        raise NotMovedError("parameters")
    if isinstance(asked, _Chat):
        if any(name in bytes(asked.messages) for name in _MEDIA):
            raise NotMovedError("media")
    elif bytes(asked.prompt)[:1] != b'"':  # a list of token ids, or of several prompts
        raise NotMovedError("api")
    asked.model = model
    return msgspec.json.encode(asked)


def whole_blocks(ids: list[int], held_share: float, block_tokens: int) -> list[int]:
    """The part of `ids`, from the start, that the source is expected to hold, cut to whole blocks."""
    held = min(len(ids), round(len(ids) * held_share))
    return ids[: held // block_tokens * block_tokens]
