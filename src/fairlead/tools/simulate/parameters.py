"""Speed and size of a simulated engine.

A step takes `step_overhead_ms`, plus `prefill_ms_per_token` for each prompt token computed in it, plus, if any request
decodes, `decode_ms_per_step` once and `decode_ms_per_sequence` for each of them. Attention reads all earlier tokens: a
prompt token takes `prefill_ms_per_1k_before` more for each 1,000 tokens of its prompt before it, and a decoding step
`decode_ms_per_1k_held` more for each 1,000 tokens that its decoding requests hold; both are 0 unless they are set.
Before the engine gets a request, its server spends `request_overhead_ms` on it (HTTP, tokenizing), in parallel to the
steps, one request after another. `adapter_slots` adapters can be loaded at a time; see `simulate.adapters`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineParameters:
    """Raises ValueError, with the name of the parameter, for a value that no engine can have."""

    prefill_ms_per_token: float = 0.1
    decode_ms_per_step: float = 12.0
    decode_ms_per_sequence: float = 0.2
    step_overhead_ms: float = 1.0
    request_overhead_ms: float = 0.0
    prefill_ms_per_1k_before: float = 0.0
    decode_ms_per_1k_held: float = 0.0
    token_budget: int = 8192  # tokens computed in one step, of prompts and answers together
    max_num_seqs: int = 256
    block_size: int = 16
    num_blocks: int = 8192
    max_model_len: int = 131072
    adapter_slots: int = 1
    adapter_load_ms: float = 100.0

    def __post_init__(self) -> None:
        for name in (
            "prefill_ms_per_token", "decode_ms_per_step", "decode_ms_per_sequence", "step_overhead_ms",
            "request_overhead_ms", "prefill_ms_per_1k_before", "decode_ms_per_1k_held", "adapter_load_ms",
        ):  # fmt: skip
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for name in (
            "step_overhead_ms", "token_budget", "max_num_seqs", "block_size", "num_blocks", "max_model_len",
            "adapter_slots",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be more than 0")
        if self.token_budget < self.max_num_seqs:
            raise ValueError("token_budget is below max_num_seqs, but every running request decodes in every step")

    def decoding_step_ms(self, sequences: int) -> float:
        """A step in which nothing but `sequences` requests decode."""
        return self.step_overhead_ms + self.decode_ms_per_step + self.decode_ms_per_sequence * sequences

    def step_ms(self, prefill_tokens: int, decoding: int, *, attended_tokens: float, held_tokens: int) -> float:
        """A step that computes `prefill_tokens` of prompts, while `decoding` requests decode.

        `attended_tokens` is the sum, over these prompt tokens, of the tokens of their prompt before each; `held_tokens`
        is what the decoding requests hold.
        """
        step_ms = self.step_overhead_ms + self.prefill_ms_per_token * prefill_tokens
        step_ms += self.prefill_ms_per_1k_before * attended_tokens / 1e3
        if decoding:
            step_ms += self.decode_ms_per_step + self.decode_ms_per_sequence * decoding
            step_ms += self.decode_ms_per_1k_held * held_tokens / 1e3
        return step_ms
