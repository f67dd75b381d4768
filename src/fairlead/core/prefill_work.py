"""What computing a part of a prompt takes, where a token takes the longer the more of its prompt is before it.

    prefill ms = prefill_ms_per_token * work,   work = computed + growth * attended

`attended` is the sum, over the tokens that are computed, of the tokens of their prompt before each: attention reads
these. `work` is in tokens at the beginning of a prompt. With a growth of 0 it is what is computed, as is usual of short
prompts; at 0.00006 a prompt of 32,000 tokens takes nearly twice as long as 32 of 1,000.
"""

from __future__ import annotations


def attended_tokens(prompt: int, computed: int) -> int:
    """Of the last `computed` tokens of a prompt."""
    if computed > prompt:
        computed = prompt
    return computed * (2 * prompt - computed) // 2


def attention_tokens(computed: int, cached: int, growth: float) -> float:
    """What their attention adds to the work of `computed` tokens that come after `cached` ones."""
    return growth * (computed * (cached + computed / 2))


def work_tokens(computed: int, cached: int, growth: float) -> float:
    return computed + attention_tokens(computed, cached, growth) if growth else computed
