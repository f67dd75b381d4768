"""SGLang, from 0.5.9 on, started with --enable-metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead.dialects.dialect import Dialect, KvPublisher, Role, ServerInfo

_ROLES: Final[Mapping[object, Role]] = {"prefill": "prefill", "decode": "decode"}
_MOST_PORT: Final = 65535


def read_info(info: Mapping[str, Any]) -> ServerInfo:
    """Of `/server_info`: the arguments that the server was started with, resolved, and what it derived from them."""
    version = info.get("version")
    return ServerInfo(
        version=version if isinstance(version, str) else None,
        role=_ROLES.get(str(info.get("disaggregation_mode")), "plain"),  # without one: the text "null"
        max_queued_requests=_count(info.get("max_queued_requests")),
        kv_events=_publisher(info.get("kv_events")),
        caches_prefixes=info.get("disable_radix_cache") is not True,
    )


def _publisher(described: Any) -> KvPublisher | None:
    """The first rank's. Of several data-parallel ranks each has a port of its own, and none is followed."""
    if not isinstance(described, dict) or described.get("publisher") != "zmq" or described.get("dp_size", 1) != 1:
        return None
    port, topic = _port(described.get("endpoint_port_base")), described.get("topic")
    if port is None:
        return None
    replay = _port(described.get("replay_endpoint_port_base"))
    return KvPublisher(port, replay, topic if isinstance(topic, str) else "")


def _count(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _port(value: Any) -> int | None:
    port = _count(value)
    return port if port is not None and port <= _MOST_PORT else None


DIALECT = Dialect(
    name="sglang",
    title="SGLang",
    owner="sglang",
    metrics={
        "sglang:num_running_reqs": "running",
        "sglang:num_queue_reqs": "waiting",
        "sglang:token_usage": "kv_usage",
        "sglang:max_total_num_tokens": "capacity",
        "sglang:page_size": "block",
        "sglang:prompt_tokens_total": "queried_prompt",  # every prompt token is looked up
        "sglang:cached_tokens_total": "hit",
        "sglang:generation_tokens_total": "generated",
        "sglang:uncached_prompt_tokens_histogram_count": "answers",
        "sglang:uncached_prompt_tokens_histogram_sum": "computed",
        # Each scheduler of a tensor-parallel or pipelined server may tell its own.
        'sglang:per_stage_req_latency_seconds_sum{stage="prefill_forward",tp_rank="0",pp_rank="0"}': "prefill_s",
        'sglang:per_stage_req_latency_seconds_sum{stage="chunked_prefill",tp_rank="0",pp_rank="0"}': "prefill_s",
        "sglang:inter_token_latency_seconds_sum": "decode_s",  # of streams
        "sglang:inter_token_latency_seconds_count": "steps",
        "sglang:lora_pool_slots_total": "adapter_slots",
    },
    rank_label="dp_rank",
    # /health generates a token and looks for it once a second: 1 s at best, and as long as a step when it is busy.
    health_path="/ready",
    info_path="/server_info",
    read_info=read_info,
    flags={
        "cached_tokens": "--enable-cache-report",
        "metrics": "--enable-metrics",
        "kv_events": '--page-size 16 --kv-events-config \'{"publisher":"zmq","endpoint":"tcp://*:5557",'
        '"replay_endpoint":"tcp://*:5558"}\'',
    },
    adapter_after_base=True,
    usual_adapter_slots=8,  # --max-loras-per-batch
    serves_unnamed_models=True,  # /generate
    # Ordinary servers have a store that they share; those of --disaggregation-mode pass every prompt on.
    kv_connectors=frozenset({"shared", "sglang"}),
)
