"""Constants learned from answers that were observed in full: milliseconds per token, how long answers are, and real
tokens for each estimated one.

Times are learned for each model, and for each engine by what factor it is slower than its model's: one model may run on
several kinds of accelerator. Few answers say little of one engine, so its factor starts at 1 and moves as answers come.
Nothing is learned on the request path; the caller passes what one answer showed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from statistics import fmean, median
from typing import Final

import msgspec

from fairlead.core.decode_time import DecodeTime, Line, Sample
from fairlead.core.pool import Endpoint, Pool

WINDOW: Final = 101
LEAST_SAMPLES: Final = 8
DOUBT_SAMPLES: Final = 16  # answers of one engine that say as much as that it is like the others
LEAST_FACTOR: Final = 1.25  # by which two kinds of accelerator differ; less is the luck of a few answers
LEAST_RATIO_SAMPLES: Final = 2  # a tokenizer hardly varies, and a wrong ratio makes every cost wrong
LEAST_PREFILL_TOKENS: Final = 256  # shorter prefills show fixed costs, not the cost of a token
LEAST_DECODE_TOKENS: Final = 16
LEAST_ESTIMATED_TOKENS: Final = 64
RATIO_BOUNDS: Final = (0.2, 5.0)  # beyond this the answer is wrong, not the estimate


class Observation(msgspec.Struct, frozen=True, gc=False):
    """One answer, observed in full. Unknown is None, which is not 0."""

    address: str  # of the engine that gave it
    model: str
    language: str
    estimated_tokens: int  # as routing used them, with the ratio that was in force
    ratio: float  # that was in force
    queued_tokens: int  # waiting at the endpoint when the request was sent there
    rtt_ms: float
    first_token_ms: float | None = None  # from the pick
    decode_ms: float | None = None  # from the first token to the end
    beside_requests: float = 0.0  # in flight at the engine while it decoded, on the mean
    prefilled_tokens: int = 0  # of others' prompts there meanwhile
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class Running:
    """A statistic of the last samples, or `start` while they are few."""

    __slots__ = ("_least", "_of", "_samples", "value")

    def __init__(self, of: Callable[[Collection[float]], float], start: float, least: int = LEAST_SAMPLES) -> None:
        self.value = start
        self._of = of
        self._least = least
        self._samples: deque[float] = deque(maxlen=WINDOW)

    def add(self, sample: float) -> None:
        self._samples.append(sample)
        if len(self._samples) >= self._least:
            self.value = self._of(self._samples)

    @property
    def samples(self) -> int:
        return len(self._samples)

    @property
    def learned(self) -> bool:
        return len(self._samples) >= self._least


class ModelTimes:
    """What engines of one model were seen to take."""

    __slots__ = ("answer_tokens", "decode", "line", "prefill_ms_per_token")

    def __init__(self, endpoint: Endpoint) -> None:
        self.prefill_ms_per_token = Running(median, endpoint.prefill_ms_per_token)  # outliers do not move it
        self.decode = DecodeTime(WINDOW)
        self.line: Line | None = None
        self.answer_tokens = Running(fmean, endpoint.answer_tokens)

    def decoded(self, sample: Sample) -> None:
        self.decode.add(sample)
        if self.decode.samples >= LEAST_SAMPLES:
            self.line = self.decode.line(self.prefill_ms_per_token.value)


class EngineTimes:
    """What one engine was seen to take."""

    __slots__ = ("decode_ratio", "prefill_ms_per_token")

    def __init__(self) -> None:
        self.prefill_ms_per_token = Running(median, 1.0, least=1)
        self.decode_ratio = Running(median, 1.0, least=1)  # to the model's line


def _factor(ratio: float, samples: int) -> float:
    """By how much an engine is slower than its model's, that was so much slower in so many answers.

    Engines that are alike must not be told apart by luck: requests would crowd on those that had it.
    """
    believed = ratio ** (samples / (samples + DOUBT_SAMPLES))
    return 1.0 if 1 / LEAST_FACTOR < believed < LEAST_FACTOR else believed


class Learner:
    """Learned constants: times by model and engine, lengths of answers by model, tokens by language."""

    def __init__(self) -> None:
        self.models: dict[str, ModelTimes] = {}
        self.engines: dict[tuple[str, str], EngineTimes] = {}  # by address and model
        self.tokens_ratio: dict[str, Running] = {}  # by language

    def ratio(self, language: str) -> float:
        """Real tokens for each estimated one."""
        learned = self.tokens_ratio.get(language)
        return learned.value if learned is not None else 1.0

    def observe(self, seen: Observation, pool: Pool) -> None:
        """Learn from one answer, and put what was learned in force on the endpoints of its model."""
        if seen.prompt_tokens and seen.estimated_tokens >= LEAST_ESTIMATED_TOKENS:
            ratio = seen.prompt_tokens / (seen.estimated_tokens / seen.ratio)
            if RATIO_BOUNDS[0] <= ratio <= RATIO_BOUNDS[1]:
                started = Running(median, 1.0, LEAST_RATIO_SAMPLES)
                self.tokens_ratio.setdefault(seen.language, started).add(ratio)
        endpoint = pool.by_address.get(seen.address)
        if endpoint is None or endpoint.model != seen.model:  # the pool changed meanwhile
            return
        model = self.models.setdefault(seen.model, ModelTimes(endpoint))
        engine = self.engines.setdefault((seen.address, seen.model), EngineTimes())
        _learn_prefill(seen, model, engine)
        if seen.completion_tokens:
            model.answer_tokens.add(seen.completion_tokens)
            _learn_decode(seen, seen.completion_tokens, model, engine)
        self.apply([one for one in pool.endpoints if one.model == seen.model])

    def forget_all_but(self, endpoints: Iterable[Endpoint]) -> None:
        """Others left the pool, and what was learned of them goes with them."""
        kept = {(endpoint.address, endpoint.model) for endpoint in endpoints}
        models = {model for _, model in kept}
        self.engines = {which: times for which, times in self.engines.items() if which in kept}
        self.models = {model: times for model, times in self.models.items() if model in models}

    def apply(self, endpoints: Iterable[Endpoint]) -> None:
        """Put what was learned in force; a model of which nothing was learned keeps its configured values."""
        for endpoint in endpoints:
            model = self.models.get(endpoint.model)
            if model is None:
                continue
            engine = self.engines.get((endpoint.address, endpoint.model), _LIKE_OTHERS)
            endpoint.answer_tokens = model.answer_tokens.value
            if model.prefill_ms_per_token.learned:
                own, usual_ms = engine.prefill_ms_per_token, model.prefill_ms_per_token.value
                endpoint.prefill_ms_per_token = usual_ms * _factor(own.value / usual_ms, own.samples)
            if model.line is not None:
                decode = engine.decode_ratio
                endpoint.decode_ms_per_token = model.line.alone_ms * _factor(decode.value, decode.samples)
                endpoint.batch_slowdown = model.line.slowdown


_LIKE_OTHERS: Final = EngineTimes()


def _learn_prefill(seen: Observation, model: ModelTimes, engine: EngineTimes) -> None:
    if seen.first_token_ms is None or seen.prompt_tokens is None or seen.cached_tokens is None:
        return
    computed = seen.prompt_tokens - seen.cached_tokens + seen.queued_tokens
    if computed < LEAST_PREFILL_TOKENS:
        return
    took_ms = max(seen.first_token_ms - seen.rtt_ms, 0.001) / computed
    model.prefill_ms_per_token.add(took_ms)
    if model.prefill_ms_per_token.learned:
        engine.prefill_ms_per_token.add(took_ms)


def _learn_decode(seen: Observation, tokens: int, model: ModelTimes, engine: EngineTimes) -> None:
    if not seen.decode_ms or tokens <= LEAST_DECODE_TOKENS:
        return
    steps = tokens - 1
    sample = Sample(seen.beside_requests, seen.prefilled_tokens / steps, seen.decode_ms / steps)
    model.decoded(sample)
    if model.line is not None:
        engine.decode_ratio.add(sample.ms_per_token / model.line.ms_per_token(sample))
