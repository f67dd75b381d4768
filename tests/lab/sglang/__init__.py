"""Fairlead in front of a real SGLang server, alone and beside a real vLLM."""

from __future__ import annotations

from typing import Final

MODEL: Final = "wren"
MOST_QUEUED: Final = 1
WITHIN_S: Final = 120.0
