"""Which events of a streamed answer bring tokens of it; counted in the bytes, without decoding them.

A stream may begin before the engine has computed anything: vLLM's Responses API says at once that the response was
created, and comments keep connections alive. Events that have names (Responses, Anthropic) bring tokens where the name
ends in `delta`; of those without, all do but for a few at either end.
"""

from __future__ import annotations


class TokenEvents:
    """Fed a stream part by part. JSON has no bare line feeds, so where a line begins or ends is never within a text."""

    __slots__ = ("_are_named",)

    def __init__(self) -> None:
        self._are_named = False

    def in_part(self, part: bytes) -> int:
        if not self._are_named:
            self._are_named = part.startswith(b"event:") or b"\nevent:" in part
        if self._are_named:
            return part.count(b"delta\n") + part.count(b"delta\r\n")
        return part.count(b"\ndata:") + part.startswith(b"data:")
