"""Constants learned from answers that were observed in full: milliseconds per token, and tokens per estimated token.

Each is a quantile of the last samples, which outliers cannot move, and is the configured value until there are enough.
It is the median, but for decoding: what a token takes grows with whatever else its engine does, and that is another
term of the cost. Under long prompts of others half of all answers decode ten times slower than the engine can.
Nothing is learned on the request path; the caller passes what one answer showed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from fairlead.core.pool import Endpoint, Pool

WINDOW: Final = 101
LEAST_SAMPLES: Final = 8
UNDISTURBED_SHARE: Final = 0.1  # of answers, that decoded with little beside them
LEAST_RATIO_SAMPLES: Final = 2  # a tokenizer hardly varies, and a wrong ratio makes every cost wrong
LEAST_PREFILL_TOKENS: Final = 256  # shorter prefills show fixed costs, not the cost of a token
LEAST_DECODE_TOKENS: Final = 16
LEAST_ESTIMATED_TOKENS: Final = 64
RATIO_BOUNDS: Final = (0.2, 5.0)  # beyond this the answer is wrong, not the estimate


class Observation(msgspec.Struct, frozen=True, gc=False):
    """One answer, observed in full. Unknown is None, which is not 0."""

    model: str
    language: str
    estimated_tokens: int  # as routing used them, with the ratio that was in force
    ratio: float  # that was in force
    queued_tokens: int  # waiting at the endpoint when the request was sent there
    rtt_ms: float
    first_token_ms: float | None = None  # from the pick
    decode_ms: float | None = None  # from the first token to the end
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class RunningQuantile:
    """What a share of the last samples does not exceed, or `start` while they are few."""

    __slots__ = ("_least", "_samples", "_share", "value")

    def __init__(self, start: float, *, share: float = 0.5, least: int = LEAST_SAMPLES) -> None:
        self.value = start
        self._share = share
        self._least = least
        self._samples: deque[float] = deque(maxlen=WINDOW)

    def add(self, sample: float) -> None:
        self._samples.append(sample)
        if len(self._samples) >= self._least:
            self.value = sorted(self._samples)[int(self._share * (len(self._samples) - 1))]

    @property
    def samples(self) -> int:
        return len(self._samples)


class Learner:
    """Learned constants by model and language."""

    def __init__(self) -> None:
        self.prefill_ms_per_token: dict[str, RunningQuantile] = {}
        self.decode_ms_per_token: dict[str, RunningQuantile] = {}
        self.tokens_ratio: dict[str, RunningQuantile] = {}  # by language

    def ratio(self, language: str) -> float:
        """Real tokens for each estimated one."""
        learned = self.tokens_ratio.get(language)
        return learned.value if learned is not None else 1.0

    def observe(self, seen: Observation, pool: Pool) -> None:
        """Learn from one answer, and put what was learned in force on the endpoints of its model."""
        if seen.prompt_tokens and seen.estimated_tokens >= LEAST_ESTIMATED_TOKENS:
            ratio = seen.prompt_tokens / (seen.estimated_tokens / seen.ratio)
            if RATIO_BOUNDS[0] <= ratio <= RATIO_BOUNDS[1]:
                self._ratio_of(seen.language).add(ratio)
        endpoints = [endpoint for endpoint in pool.endpoints if endpoint.model == seen.model]
        if not endpoints:  # the pool changed meanwhile
            return
        configured = endpoints[0]
        prefill = self.prefill_ms_per_token.setdefault(seen.model, RunningQuantile(configured.prefill_ms_per_token))
        decode = self.decode_ms_per_token.setdefault(
            seen.model, RunningQuantile(configured.decode_ms_per_token, share=UNDISTURBED_SHARE)
        )
        if seen.first_token_ms is not None and seen.prompt_tokens is not None and seen.cached_tokens is not None:
            computed = seen.prompt_tokens - seen.cached_tokens + seen.queued_tokens
            if computed >= LEAST_PREFILL_TOKENS:
                prefill.add(max(seen.first_token_ms - seen.rtt_ms, 0.001) / computed)
        if seen.decode_ms and seen.completion_tokens and seen.completion_tokens > LEAST_DECODE_TOKENS:
            decode.add(seen.decode_ms / (seen.completion_tokens - 1))
        self.apply(endpoints)

    def _ratio_of(self, language: str) -> RunningQuantile:
        return self.tokens_ratio.setdefault(language, RunningQuantile(1.0, least=LEAST_RATIO_SAMPLES))

    def apply(self, endpoints: Iterable[Endpoint]) -> None:
        """Put what was learned in force; a model of which nothing was learned keeps its configured values."""
        for endpoint in endpoints:
            prefill = self.prefill_ms_per_token.get(endpoint.model)
            decode = self.decode_ms_per_token.get(endpoint.model)
            if prefill is not None and decode is not None:
                endpoint.prefill_ms_per_token, endpoint.decode_ms_per_token = prefill.value, decode.value
