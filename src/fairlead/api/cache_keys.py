"""What a body says that makes an engine compute another prefix, or share none, though its text is the same.

vLLM and SGLang add some of these to the hash of their first block; others change what the chat template renders before
the first message. Two requests that differ in one of them have no block of KV in common.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

import msgspec

_Slice = msgspec.Raw | msgspec.UnsetType  # of the body, undecoded
_UNSET: Final = msgspec.UNSET
_NONE: Final = b'"none"'
_SAME_AS_ABSENT: Final = frozenset({b"null", b"{}", b"[]", b'""'})


class CacheKeys(msgspec.Struct, gc=False):
    """Parameters of vLLM 0.15 to 0.32, SGLang 0.5 and OpenAI's API."""

    cache_salt: _Slice = _UNSET
    extra_key: _Slice = _UNSET  # SGLang
    lora_path: _Slice = _UNSET  # SGLang: adapters; one that is named plainly is `Prompt.adapter`
    adapter_id: _Slice = _UNSET  # TGI
    chat_template: _Slice = _UNSET
    chat_template_kwargs: _Slice = _UNSET
    reasoning_effort: _Slice = _UNSET  # gpt-oss and Mistral write it into the system prompt
    reasoning: _Slice = _UNSET  # the same, of the Responses API
    thinking: _Slice = _UNSET  # Anthropic
    tool_choice: _Slice = _UNSET
    truncate_prompt_tokens: _Slice = _UNSET  # vLLM cuts from the left
    add_special_tokens: _Slice = _UNSET
    mm_processor_kwargs: _Slice = _UNSET
    media_io_kwargs: _Slice = _UNSET
    image_data: _Slice = _UNSET  # SGLang: not in its text, so its place there is not known
    video_data: _Slice = _UNSET
    audio_data: _Slice = _UNSET
    input_embeds: _Slice = _UNSET  # SGLang
    prompt_embeds: _Slice = _UNSET  # vLLM
    previous_response_id: _Slice = _UNSET  # the engine has what comes before


_NAMES: Final = CacheKeys.__struct_fields__
_values: Final = attrgetter(*_NAMES)
_other_texts: Final = attrgetter(
    "chat_template", "truncate_prompt_tokens", "image_data", "video_data", "audio_data", "input_embeds",
    "prompt_embeds", "previous_response_id",
)  # fmt: skip


def cache_key(read: CacheKeys, adapter: str) -> bytes:
    """What separates the caches of this request from others', as bytes; empty for most requests.

    `adapter`: what `lora_path` names, where that is one plain name; it then separates by itself.
    Of `tool_choice` only "none" counts: it may leave the tools out of the prompt, the others only guide the answer.
    """
    values = _values(read)
    if values.count(_UNSET) == len(values):
        return b""
    parts = []
    for name, value in zip(_NAMES, values, strict=True):
        if adapter and name == "lora_path":
            continue
        raw = b"null" if value is _UNSET else bytes(value)
        if raw not in _SAME_AS_ABSENT and (name != "tool_choice" or raw == _NONE):
            parts.append(b"%b=%d:%b" % (name.encode(), len(raw), raw))  # with its length: no value can pass for two
    return b"".join(parts)


def reads_otherwise(read: CacheKeys) -> bool:
    """Whether the engine reads more than the prompt's text, or less: its tokens then say nothing of that text's."""
    return any(value is not _UNSET and bytes(value) not in _SAME_AS_ABSENT for value in _other_texts(read))
