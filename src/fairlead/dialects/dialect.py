"""The description of an engine dialect: data for the parts that talk to engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

# proxy: the engine's own asks who computes the prompt. sglang: both engines get the request, at the same time.
KvConnector = Literal["mooncake", "nixl", "shared", "proxy", "sglang"]

# What a metric means. Gauges, of which the greatest of a rank counts: running and waiting requests, kv_usage (0 to 1),
# capacity of the KV cache and block in tokens. Counters, which are summed: prompt tokens that were looked up in the
# prefix cache (queried), found there (hit) and served (prompt; queried_prompt is both), and tokens generated.
# Sums over ended answers, likewise counters: answers, prefill_s and decode_s in seconds, computed (tokens of prompts),
# and steps, or answer_tokens, which are one more for each answer.
# cache_config: block_size, num_gpu_blocks and cache_dtype are its labels. adapter_slots: adapters loaded at a time.
Reading = Literal[
    "running",
    "waiting",
    "kv_usage",
    "capacity",
    "block",
    "queried",
    "queried_prompt",
    "hit",
    "prompt",
    "generated",
    "answers",
    "prefill_s",
    "computed",
    "decode_s",
    "steps",
    "answer_tokens",
    "cache_config",
    "adapter_slots",
]


Role = Literal["plain", "prefill", "decode"]


# What a server gives only if it is started for it.
Gift = Literal["cached_tokens", "metrics", "kv_events"]


class KvPublisher(msgspec.Struct, frozen=True, gc=False):
    """Where an engine publishes its KV events: TCP ports at its own host."""

    events_port: int
    replay_port: int | None
    topic: str


class ServerInfo(msgspec.Struct, frozen=True, gc=False):
    """What a server reports that it is, apart from its models. None is unknown."""

    version: str | None = None
    role: Role = "plain"  # `prefill`: it serves one half of a request, so no plain request may go there
    max_queued_requests: int | None = None  # past which it refuses
    kv_events: KvPublisher | None = None
    caches_prefixes: bool = True


def read_version(info: Mapping[str, Any]) -> ServerInfo:
    """Of `{"version": ...}`, all that most engines report."""
    version = info.get("version")
    return ServerInfo(version=version if isinstance(version, str) else None)


def _never(_: str | None) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of engine. All of them answer `GET /v1/models` as OpenAI does."""

    name: str  # as in configurations
    title: str  # for messages
    owner: str  # `owned_by` of the models that it lists
    metrics: Mapping[str, Reading]  # by the name that the metrics page has, and in braces labels that a line must have
    rank_label: str  # the label of metrics that names the data-parallel rank
    # Answers below 500 when the engine serves, soon and however busy it is. An engine that hangs behind it is seen by
    # its requests (`core.health`).
    health_path: str = "/health"
    info_path: str = "/version"  # a JSON object for `read_info`; after any other answer all of it is unknown
    read_info: Callable[[Mapping[str, Any]], ServerInfo] = read_version
    flags: Mapping[Gift, str] = field(default_factory=dict)  # with which it is started to give what it withholds
    adapter_series: str = ""  # the metric that names adapters in use; each set of them is a series of its own
    usual_adapter_slots: int = 1  # where the engine does not report them
    adapter_after_base: bool = False  # requests name an adapter as `base:adapter`; otherwise by its own name
    metrics_path: str = "/metrics"
    serves_unnamed_models: bool = False  # it has an API whose requests name no model
    kv_connectors: frozenset[KvConnector]  # connectors by which its KV can go to another engine
    transfers_safely: Callable[[str | None], bool] = _never  # whether a failed copy is harmless, by version
