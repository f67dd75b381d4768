"""The `/metrics` page of a simulated engine, with the names, types and labels of vLLM or SGLang."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.tools.simulate import sglang
from fairlead.tools.simulate.engine import Engine

_TTFT_BUCKETS_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
_NIXL_BUCKETS: Final = tuple(2.0 ** (10 + i) for i in range(1, 25, 2))


class EngineMetrics:
    """One engine's page.

    Times to first token, and the bytes of each NIXL transfer (the only connector that shows them in vLLM 0.32), are
    reported to it; everything else is read from the model on request.
    """

    def __init__(self, kind: str, model: str, engine: Engine, time_scale: float = 1.0, *, nixl: bool = False) -> None:
        self._registry = CollectorRegistry()
        page = PAGES[kind]
        labels = {"model_name": model} | page.labels
        self._registry.register(page(engine, labels, time_scale))
        self._ttft = Histogram(
            f"{kind}:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            labelnames=list(labels),
            buckets=_TTFT_BUCKETS_S,
            registry=self._registry,
        ).labels(**labels)

        self._nixl_bytes = None
        if nixl:
            self._nixl_bytes = Histogram(
                "vllm:nixl_bytes_transferred",
                "Histogram of bytes transferred per NIXL KV Cache transfers.",
                labelnames=list(labels),
                buckets=_NIXL_BUCKETS,
                registry=self._registry,
            ).labels(**labels)

    def observe_transfer(self, transferred_bytes: int) -> None:
        if self._nixl_bytes is not None:
            self._nixl_bytes.observe(transferred_bytes)

    def observe_first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def page(self) -> bytes:
        return generate_latest(self._registry)


class Page(Collector):
    """The metrics page of one dialect, with the same names, types and labels."""

    version: ClassVar[str]
    labels: ClassVar[dict[str, str]]  # in addition to the model's name

    def __init__(self, engine: Engine, labels: dict[str, str], time_scale: float) -> None:
        self._engine = engine
        self._labels = labels
        self._time_scale = time_scale

    def _gauge(self, name: str, text: str, value: float, **more: str) -> Metric:
        labels = self._labels | more
        family = GaugeMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float, **more: str) -> Metric:
        labels = self._labels | more
        family = CounterMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _sums(self, name: str, text: str, count: float, total: float, **more: str) -> Metric:
        """A histogram of one bucket: what of it is looked at are its sums."""
        labels = self._labels | more
        family = HistogramMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), buckets=[("+Inf", count)], sum_value=total)
        return family

    def _seconds(self, ms: float) -> float:
        return ms / 1e3 / self._time_scale


class _VllmPage(Page):
    version = "0.32.0"
    labels: ClassVar = {"engine": "0"}

    def __init__(self, engine: Engine, labels: dict[str, str], time_scale: float) -> None:
        super().__init__(engine, labels, time_scale)
        self._adapters_since: dict[str, float] = {}  # by those in use: when they last were these

    def _adapters_in_use(self) -> Metric:
        """A series for each set that ever was, without the page's usual labels; of these vLLM forgets none either."""
        names = ["max_lora", "waiting_lora_adapters", "running_lora_adapters"]
        family = GaugeMetricFamily("vllm:lora_requests_info", "Running stats on lora requests.", labels=names)
        for in_use, at_s in self._adapters_since.items():
            family.add_metric([str(self._engine.parameters.adapter_slots), in_use, in_use], at_s)
        return family

    def collect(self) -> Iterator[Metric]:
        engine, counters, parameters = self._engine, self._engine.counters, self._engine.parameters
        yield self._gauge("vllm:num_requests_running", "Number of requests in model execution batches.", engine.running)
        yield self._gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", engine.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.kv_usage)
        queries, hits = counters.prefix_queries, counters.prefix_hits
        yield self._counter("vllm:prefix_cache_queries", "Prefix cache queries, in tokens.", queries)
        yield self._counter("vllm:prefix_cache_hits", "Prefix cache hits, in tokens.", hits)
        prompt_tokens = counters.prompt_computed + counters.prompt_cached
        yield self._counter("vllm:prompt_tokens", "Number of prefill tokens processed.", prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Number of generation tokens processed.", counters.generated)
        yield self._counter("vllm:num_preemptions", "Number of preemptions of the engine.", counters.preemptions)
        by_source = CounterMetricFamily(
            "vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", labels=[*self._labels, "source"]
        )
        sources = {
            "local_compute": counters.prompt_computed,
            "local_cache_hit": counters.prompt_cached - counters.prompt_external,
            "external_kv_transfer": counters.prompt_external,
        }
        for source, tokens in sources.items():
            by_source.add_metric([*self._labels.values(), source], tokens)
        yield by_source
        answers, computed, generated = counters.finished, counters.finished_computed, counters.finished_generated
        prefill_s, decode_s = self._seconds(counters.finished_prefill_ms), self._seconds(counters.finished_decode_ms)
        text = "Histogram of time spent in PREFILL phase for request."
        yield self._sums("vllm:request_prefill_time_seconds", text, answers, prefill_s)
        text = "Histogram of time spent in DECODE phase for request."
        yield self._sums("vllm:request_decode_time_seconds", text, answers, decode_s)
        text = "Histogram of new KV tokens computed during prefill (excluding cached tokens)."
        yield self._sums("vllm:request_prefill_kv_computed_tokens", text, answers, computed)
        text = "Number of generation tokens processed."
        yield self._sums("vllm:request_generation_tokens", text, answers, generated)
        in_use = ",".join(engine.adapters_in_use)
        if in_use or self._adapters_since:
            self._adapters_since[in_use] = time.time()
            yield self._adapters_in_use()
        yield self._gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            1.0,
            block_size=str(parameters.block_size),
            num_gpu_blocks=str(parameters.num_blocks),
            enable_prefix_caching="True",
        )


class _SglangPage(Page):
    version = sglang.VERSION
    labels: ClassVar = {"engine_type": "unified"}

    def collect(self) -> Iterator[Metric]:
        engine, counters, parameters = self._engine, self._engine.counters, self._engine.parameters
        tokens = parameters.num_blocks * parameters.block_size
        hit_rate = counters.prefix_hits / max(1, counters.prefix_queries)
        yield self._gauge("sglang:num_running_reqs", "The number of running requests.", engine.running)
        yield self._gauge("sglang:num_queue_reqs", "The number of requests in the waiting queue.", engine.waiting)
        yield self._gauge("sglang:token_usage", "The token usage.", engine.kv_usage)
        yield self._gauge("sglang:num_used_tokens", "The number of used tokens.", engine.kv_usage * tokens)
        yield self._gauge("sglang:max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", tokens)
        yield self._gauge("sglang:cache_hit_rate", "The prefix cache hit rate.", hit_rate)
        prompt_tokens = counters.prompt_computed + counters.prompt_cached
        yield self._gauge("sglang:page_size", "The page size of the KV cache.", parameters.block_size)
        if engine.adapters.loads:
            slots, used = parameters.adapter_slots, min(parameters.adapter_slots, engine.adapters.loads)
            yield self._gauge("sglang:lora_pool_slots_used", "LoRA slots in use.", used)
            yield self._gauge("sglang:lora_pool_slots_total", "LoRA slots.", slots)
        whole = {"is_streaming": "false"}  # all of them: the model of the engine does not know who streams
        if prompt_tokens:
            yield self._counter("sglang:prompt_tokens", "Number of prefill tokens processed.", prompt_tokens, **whole)
        if counters.prompt_cached:
            cached, text = counters.prompt_cached, "Number of cached prompt tokens."
            yield self._counter("sglang:cached_tokens", text, cached, cache_source="device")
        if counters.generated:
            text = "Number of generation tokens processed."
            yield self._counter("sglang:generation_tokens", text, counters.generated, **whole)
        if counters.finished:
            answers, steps = counters.finished, counters.finished_generated - counters.finished
            text = "Histogram of uncached (compute) prompt token length."
            yield self._sums("sglang:uncached_prompt_tokens_histogram", text, answers, counters.finished_computed)
            text = "The latency of each stage of requests."
            prefill_s, ranks = self._seconds(counters.finished_prefill_ms), {"tp_rank": "0", "pp_rank": "0"}
            stage = "sglang:per_stage_req_latency_seconds"
            yield self._sums(stage, text, answers, prefill_s, stage="prefill_forward", **ranks)
            decode_s, text = self._seconds(counters.finished_decode_ms), "Histogram of inter-token latency in seconds."
            yield self._sums("sglang:inter_token_latency_seconds", text, max(0, steps), decode_s)


PAGES: Final[Mapping[str, type[Page]]] = {"vllm": _VllmPage, "sglang": _SglangPage}  # simulated dialects
