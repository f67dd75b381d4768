"""The token ids of a session's context, as its engine makes them of the request that is in hand.

Only what shapes the prompt goes to the engine's /tokenize, as undecoded slices of the body. What cannot be copied by
token ids alone (images, several prompts at once, other APIs) is refused.
"""

from __future__ import annotations

from typing import Final

import msgspec

_Slice = msgspec.Raw | msgspec.UnsetType
_UNSET: Final = msgspec.UNSET
_MEDIA: Final = (b'"image', b'"input_image', b'"input_audio', b'"audio_url', b'"video_url', b'"file')


class NotMovedError(Exception):
    """The session stays, and no engine is to blame; `reason` is for counting."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Chat(msgspec.Struct, omit_defaults=True):
    """Of a chat completion, what vLLM's /tokenize reads."""

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
    "/v1/chat/completions": _Chat,
    "/v1/completions": _Completion,
}


def tokenize_request(path: str, body: bytes, model: str) -> bytes:
    """What to POST to /tokenize for the prompt of `body`. Raises NotMovedError."""
    kind = _KINDS.get(path)
    if kind is None:
        raise NotMovedError("api")
    try:
        asked = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotMovedError("body") from None
    if isinstance(asked, _Chat):
        if any(name in bytes(asked.messages) for name in _MEDIA):
            raise NotMovedError("media")
    elif bytes(asked.prompt)[:1] != b'"':  # a list: of token ids, or of several prompts
        raise NotMovedError("api")
    asked.model = model
    return msgspec.json.encode(asked)


def whole_blocks(ids: list[int], held_share: float, block_tokens: int) -> list[int]:
    """The start of `ids` that the source holds, about, cut to whole blocks."""
    held = min(len(ids), round(len(ids) * held_share))
    return ids[: held // block_tokens * block_tokens]
