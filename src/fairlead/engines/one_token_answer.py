"""What vLLM answers to a completion of one token, as far as a prefill or a copy of KV needs it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fairlead.api.usage import MOST_TOKENS

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class _Details(msgspec.Struct):
    cached_tokens: _Tokens | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: _Tokens | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class OneTokenAnswer(msgspec.Struct):
    """Unknown values are None, which is not 0."""

    choices: list[_Choice]
    usage: _Usage = _Usage()
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def is_of_one_token(self) -> bool:
        """Whether it ended because its one token was there, and not because the engine stopped or aborted it."""
        return [choice.finish_reason for choice in self.choices] == ["length"]

    @property
    def cached_tokens(self) -> int | None:
        details = self.usage.prompt_tokens_details
        return None if details is None else details.cached_tokens
