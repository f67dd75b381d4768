"""vLLM, from 0.15 on."""

from __future__ import annotations

from fairlead.dialects.dialect import Dialect


def transfers_safely(version: str | None) -> bool:
    """Whether a vLLM of this version survives a transfer that fails: up to 0.29 its request hangs and leaks blocks."""
    parts = (version or "").split(".")
    return len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() and (int(parts[0]), int(parts[1])) >= (0, 30)


DIALECT = Dialect(
    name="vllm",
    title="vLLM",
    owner="vllm",
    metrics={
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "vllm:kv_cache_usage_perc": "kv_usage",
        "vllm:gpu_cache_usage_perc": "kv_usage",  # the old name of kv_cache_usage_perc
        # `gpu_prefix_cache_*` of old versions is left out: it counted blocks in some of them and tokens in others
        "vllm:prefix_cache_queries_total": "queried",
        "vllm:prefix_cache_hits_total": "hit",
        "vllm:prompt_tokens_total": "prompt",
        "vllm:generation_tokens_total": "generated",
        "vllm:request_prefill_time_seconds_count": "answers",
        "vllm:request_prefill_time_seconds_sum": "prefill_s",
        "vllm:request_prefill_kv_computed_tokens_sum": "computed",
        "vllm:request_decode_time_seconds_sum": "decode_s",
        "vllm:request_generation_tokens_sum": "answer_tokens",
        "vllm:cache_config_info": "cache_config",
    },
    rank_label="engine",
    adapter_series="vllm:lora_requests_info",
    usual_adapter_slots=1,  # --max-loras
    flags={
        "cached_tokens": "--enable-prompt-tokens-details",
        "metrics": "no --disable-log-stats",
        "kv_events": '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",'
        '"replay_endpoint":"tcp://*:5558"}\'',
    },
    kv_connectors=frozenset({"mooncake", "nixl", "shared", "proxy"}),
    transfers_safely=transfers_safely,
)
