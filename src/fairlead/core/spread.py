"""Where in a prompt its tokens are: a cached prefix of UUIDs has more of them than one of prose as long."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead.api.media import PADDING, Media
from fairlead.api.prompt import Prompt
from fairlead.core.text_kinds import NUMBER, Slice, stride_bytes
from fairlead.core.token_model import Features, Rates

_MESSAGE: Final = NUMBER["message"]
_HEAD: Final = NUMBER["head"]
_TOOLS: Final = NUMBER["tools"]
_IMAGE: Final = NUMBER["image"]
_AREA: Final = NUMBER["image_area"]
_SIZED: Final = NUMBER["sized_image"]
_CLIP: Final = NUMBER["clip"]


class Spread(msgspec.Struct, frozen=True, gc=False):
    """Tokens of a prompt up to each part of its text, by a model's rates."""

    stride_bytes: int
    text_bytes: int  # without what pads media
    up_to: tuple[float, ...]  # tokens before the first part, of which a template makes the head, and after each
    media_ends: tuple[int, ...] = ()  # bytes of the text from which an image's tokens are all there
    media_up_to: tuple[float, ...] = ()  # tokens of images up to there

    def before(self, at_bytes: int) -> float:
        """Tokens of the prompt that stand before this byte of its text."""
        media_tokens = 0.0
        if self.media_ends and (found := bisect_right(self.media_ends, at_bytes)):
            media_tokens = self.media_up_to[found - 1]
            padded_bytes = min(len(PADDING), at_bytes - self.media_ends[found - 1])
            at_bytes -= len(PADDING) * (found - 1) + padded_bytes
        part, rest = divmod(min(at_bytes, self.text_bytes), self.stride_bytes)
        tokens = self.up_to[part]
        if rest:
            size = min(self.stride_bytes, self.text_bytes - part * self.stride_bytes)
            tokens += (self.up_to[part + 1] - tokens) * rest / size
        return tokens + media_tokens


def make_spread(parts: Sequence[Slice], text_bytes: int, prompt: Prompt, rates: Rates) -> tuple[Features, Spread]:
    """What the prompt's tokens are counted by, and where they are."""
    amounts: dict[int, float] = {_HEAD: 1.0}
    tokens, messages, per_message = rates[_HEAD], 0.0, rates[_MESSAGE]
    if prompt.has_tools:
        amounts[_TOOLS] = 1.0
        tokens += rates[_TOOLS]
    up_to = [tokens]
    for kind, estimated, marks in parts:
        tokens += estimated * rates[kind] + marks * per_message
        amounts[kind] = amounts.get(kind, 0.0) + estimated
        messages += marks
        up_to.append(tokens)
    amounts[_MESSAGE] = messages
    ends: tuple[int, ...] = ()
    media_up_to: list[float] = []
    if prompt.media:
        tokens = 0.0
        for medium in prompt.placed:
            for kind, amount in _amounts(medium):
                amounts[kind] = amounts.get(kind, 0.0) + amount
                tokens += amount * rates[kind]
            media_up_to.append(tokens)
        ends = tuple([medium.end - len(PADDING) for medium in prompt.placed])
        if prompt.media > len(prompt.placed):
            amounts[_IMAGE] = amounts.get(_IMAGE, 0.0) + prompt.media - len(prompt.placed)
    return tuple(amounts.items()), Spread(stride_bytes(text_bytes), text_bytes, tuple(up_to), ends, tuple(media_up_to))


def _amounts(medium: Media) -> Features:
    if not medium.is_image:
        return ((_CLIP, 1.0),)
    return ((_SIZED, 1.0), (_AREA, medium.patches)) if medium.patches else ((_IMAGE, 1.0),)
