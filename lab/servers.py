"""What a server of each kind of engine is started with on a CPU, and where it is asked what."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from fairlead.tools.demo.traffic import ROUTE
from lab import environment

MODELS: Final = Path(__file__).parent / "models"
MAX_MODEL_LEN: Final = 2048
BLOCK_TOKENS: Final = 32  # of vLLM, the smallest that it accepts on CPU: the lab's prompts are short
PAGE_TOKENS: Final = 16  # of SGLang
CAPACITY_TOKENS: Final = 20_000  # of SGLang's cache, which on a CPU takes more memory than there is unless it is told
TOPIC: Final = "kv-events"
# Of a client that asks a server again and again: a connection that was idle for five seconds is closed by the server,
# even if it was the server that was too busy to read the next request.
A_CONNECTION_EACH: Final = httpx.Limits(max_keepalive_connections=0)


@dataclass(frozen=True, slots=True)
class Start:
    """One server to be started; `number` is its index, `folder` is for its sockets and logs."""

    python: str
    model: str
    folder: Path
    number: int
    port: int
    events_port: int
    replay_port: int


@dataclass(frozen=True, slots=True)
class Extra:
    """Additional settings of one server."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


NOTHING_MORE: Final = Extra((), {})


@dataclass(frozen=True, slots=True)
class Server:
    """`command` has no flag but those that the machine needs; `observable` adds all that a router can be shown.

    `publishes` gives the ZMQ addresses of KV events and of their replay, which `observable` gets too.
    """

    contents: environment.Contents
    bytes_each: int
    environment: Mapping[str, str]
    command: Callable[[Start], Sequence[str]]
    publishes: Callable[[Start], tuple[str, str]]
    observable: Callable[[str, str], Sequence[str]]
    quiet: Extra  # without what spins while there is nothing to do
    ready_path: str
    forget_path: str  # a POST empties its prefix cache
    first_request: Mapping[str, object] = field(default_factory=dict)  # what the first one has besides


def _vllm_publishes(start: Start) -> tuple[str, str]:
    """Unix sockets: vLLM binds a TCP address only when it names all interfaces, and connects to any other."""
    return f"ipc://{start.folder}/events-{start.number}", f"ipc://{start.folder}/replay-{start.number}"


def _vllm_command(start: Start) -> Sequence[str]:
    return [
        *(start.python, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(MODELS / start.model)),
        *("--served-model-name", start.model, ROUTE),  # the route: the sidecar may be late
        *("--host", "127.0.0.1", "--port", str(start.port)),
        *("--max-model-len", str(MAX_MODEL_LEN), "--enforce-eager"),
        # The models have bfloat16, for which vLLM 0.32 takes AMX where a CPU says that it has it: on some virtual
        # machines its attention then dies of an illegal instruction.
        *("--dtype", "float16"),
    ]


def _vllm_observable(events: str, replay: str) -> Sequence[str]:
    published = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": events,
        "replay_endpoint": replay,
        "topic": TOPIC,
    }
    return [
        *("--block-size", str(BLOCK_TOKENS), "--kv-events-config", json.dumps(published)),
        *("--enable-prompt-tokens-details", "--enable-prefix-caching"),
    ]


def _sglang_publishes(start: Start) -> tuple[str, str]:
    return f"tcp://127.0.0.1:{start.events_port}", f"tcp://127.0.0.1:{start.replay_port}"


def _sglang_command(start: Start) -> Sequence[str]:
    return [
        *(start.python, str(environment.SGLANG_SERVER)),
        *("--model-path", str(MODELS / start.model), "--served-model-name", start.model),
        *("--host", "127.0.0.1", "--port", str(start.port)),
        *("--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", str(CAPACITY_TOKENS)),
    ]


def _sglang_observable(events: str, replay: str) -> Sequence[str]:
    # Without `bind` it connects to an address that does not name all interfaces.
    published = {"publisher": "zmq", "bind": True, "endpoint": events, "replay_endpoint": replay, "topic": TOPIC}
    return [
        *("--page-size", str(PAGE_TOKENS), "--kv-events-config", json.dumps(published)),
        *("--enable-metrics", "--enable-cache-report"),
    ]


SERVERS: Final[Mapping[str, Server]] = {
    "vllm": Server(
        contents=environment.VLLM,
        bytes_each=3 << 30,  # as seen with vLLM 0.32, whatever the tiny model
        environment={
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache, so that each policy starts cold
        },
        command=_vllm_command,
        publishes=_vllm_publishes,
        observable=_vllm_observable,
        # Its worker process spins for a second after each answer, and takes a core from the other engines.
        quiet=Extra((), {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
        ready_path="/health",
        forget_path="/reset_prefix_cache",
    ),
    "sglang": Server(
        contents=environment.SGLANG,
        bytes_each=5 << 29,  # 2.0 GB in three processes, as seen with SGLang 0.5.23; and some room
        environment={"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        command=_sglang_command,
        publishes=_sglang_publishes,
        observable=_sglang_observable,
        # Its scheduler asks for work without a pause.
        quiet=Extra(("--sleep-on-idle",), {}),
        ready_path="/ready",
        forget_path="/flush_cache",
        # A host that SGLang knows for such requests: a server of one half answers without the other. Others ignore it.
        first_request={"bootstrap_host": "2.2.2.2", "bootstrap_room": 0},
    ),
}
