"""A `/metrics` page with the families of a vLLM that has served for a while: one that is as long as an engine's own.

Made once, by the library that vLLM makes its page with. `fairlead.tools.simulate` has what a router reads and little
else, which would be kind to whoever must find it among the rest.
"""

from __future__ import annotations

from random import Random
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fairlead.tools.bench.decision import MODEL

_FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_NEXT_TOKEN_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_S: Final = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_TOKENS: Final = tuple(mantissa * 10**exponent for exponent in range(6) for mantissa in (1, 2, 5))[:-2]
_STEP_TOKENS: Final = (1, *(2**power for power in range(3, 15)))
_HTTP_S: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60,
)  # fmt: skip
_HISTOGRAMS: Final[dict[str, tuple[float, ...]]] = {
    "vllm:time_to_first_token_seconds": _FIRST_TOKEN_S,
    "vllm:inter_token_latency_seconds": _NEXT_TOKEN_S,
    "vllm:request_time_per_output_token_seconds": _NEXT_TOKEN_S,
    "vllm:e2e_request_latency_seconds": _REQUEST_S,
    "vllm:request_queue_time_seconds": _REQUEST_S,
    "vllm:request_inference_time_seconds": _REQUEST_S,
    "vllm:request_prefill_time_seconds": _REQUEST_S,
    "vllm:request_decode_time_seconds": _REQUEST_S,
    "vllm:request_prompt_tokens": _TOKENS,
    "vllm:request_generation_tokens": _TOKENS,
    "vllm:request_max_num_generation_tokens": _TOKENS,
    "vllm:request_params_max_tokens": _TOKENS,
    "vllm:request_prefill_kv_computed_tokens": _TOKENS,
    "vllm:iteration_tokens_total": _STEP_TOKENS,
    "vllm:request_params_n": (1, 2, 5, 10, 20),
}
_GAUGES: Final = ("num_requests_running", "num_requests_waiting", "engine_sleep_state")
_COUNTERS: Final = (
    "prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries", "external_prefix_cache_hits",
    "mm_cache_queries", "mm_cache_hits", "prompt_tokens", "generation_tokens", "num_preemptions",
)  # fmt: skip
_PROCESS: Final = {
    "process_virtual_memory_bytes": 2.1e10,
    "process_resident_memory_bytes": 1.6e9,
    "process_start_time_seconds": 1.7e9,  # the same on all pages: they are of one life
    "process_open_fds": 87.0,
    "process_max_fds": 1048576.0,
}
_HANDLERS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics", "none")


def page(seed: int) -> bytes:
    """Another seed gives other numbers, in a page of the same lines."""
    rng, registry = Random(seed), CollectorRegistry()
    labels = {"model_name": MODEL, "engine": "0"}
    for name, value in _PROCESS.items():
        Gauge(name, name.replace("_", " "), registry=registry).set(value)
    for name in _GAUGES:
        _gauge(registry, f"vllm:{name}", labels, rng.randrange(64))
    _gauge(registry, "vllm:kv_cache_usage_perc", labels, rng.random())
    _gauge(registry, "vllm:cache_config_info", {**labels, "block_size": "16", "num_gpu_blocks": "27000"}, 1)
    for name in _COUNTERS:
        _counter(registry, f"vllm:{name}", [labels], rng)
    _counter(registry, "vllm:request_success", [{**labels, "finished_reason": r} for r in ("stop", "length")], rng)
    for name, buckets in _HISTOGRAMS.items():
        _histogram(registry, name, [labels], buckets, rng)
    _counter(registry, "http_requests", [{"handler": h, "method": "POST", "status": "2xx"} for h in _HANDLERS], rng)
    by_handler = [{"handler": handler, "method": "POST"} for handler in _HANDLERS]
    _histogram(registry, "http_request_duration_seconds", by_handler, (0.1, 0.5, 1), rng)
    _histogram(registry, "http_request_duration_highr_seconds", [{}], _HTTP_S, rng)
    return generate_latest(registry)


def _gauge(registry: CollectorRegistry, name: str, labels: dict[str, str], value: float) -> None:
    Gauge(name, f"What {name} says.", list(labels), registry=registry).labels(**labels).set(value)


def _counter(registry: CollectorRegistry, name: str, children: list[dict[str, str]], rng: Random) -> None:
    counter = Counter(name, f"What {name} counts.", list(children[0]), registry=registry)
    for labels in children:
        counter.labels(**labels).inc(rng.randrange(10**9))


def _histogram(
    registry: CollectorRegistry, name: str, children: list[dict[str, str]], buckets: tuple[float, ...], rng: Random
) -> None:
    histogram = Histogram(name, f"Histogram of {name}.", list(children[0]), registry=registry, buckets=buckets)
    for labels in children:
        child = histogram.labels(**labels) if labels else histogram
        for bound in buckets:
            for _ in range(rng.randrange(1, 9)):
                child.observe(bound * rng.random())
