"""vLLM servers of the lab: one process each, on this machine's CPU, with everything on that a router can look at.

They publish KV events over Unix sockets: vLLM binds a TCP address only when it names all interfaces, and connects to
any other, so loopback alone cannot be had over TCP.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Never, Self

import httpx

from fairlead.demo.children import Child, ChildError, all_of, free_ports, while_running
from fairlead.demo.engines import forever
from fairlead.demo.traffic import ROUTE
from fairlead.errors import UserError
from lab import environment, words

MODELS: Final = Path(__file__).parent / "models"
MAX_MODEL_LEN: Final = 2048
BLOCK_TOKENS: Final = 32  # the least that vLLM takes on CPU: the lab's prompts are short
TOPIC: Final = "kv-events"

_BYTES_EACH: Final = 3 << 30  # as seen with vLLM 0.32, whatever the tiny model
_STARTS_WITHIN_S: Final = 420.0  # some 60 s of one core for each, and all start at once
_ANSWERS_WITHIN_S: Final = 240.0  # the first answer prepares what later ones use: 20 s of one core
_ENVIRONMENT: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache, so that each policy starts cold
}


@dataclass(frozen=True, slots=True)
class Extra:
    """Settings of one server beyond those of all."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


# vLLM's worker process spins for a second after each answer. On its own machine that costs nobody anything, but in the
# lab it takes a core from the other engines. Without a process of its own there is nothing to spin for.
QUIET: Final = Extra((), {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})


@dataclass(frozen=True, slots=True)
class LabEngine:
    """A running server. `events` and `replay` are ZMQ addresses."""

    model: str
    address: str
    events: str
    replay: str
    child: Child


class LabEngines:
    """`async with LabEngines(models, folder) as engines:` starts a server for each name in `models`, and stops them.

    `extra` tells the further settings of each, by its number. Builds the lab's environment if need be. Raises UserError
    for what the user can change, ChildError where a server does not come up.
    """

    def __init__(self, models: Sequence[str], folder: Path, extra: Callable[[int], Extra] | None = None) -> None:
        self.running: tuple[LabEngine, ...] = ()
        self._models = models
        self._folder = folder
        self._extra = extra if extra is not None else lambda _: Extra((), {})
        self._stack = AsyncExitStack()

    async def ended(self) -> Never:
        """Raise when a server ends by itself."""
        await while_running(forever(), *[engine.child.ended() for engine in self.running])

    async def __aenter__(self) -> Self:
        _check_memory(len(self._models))
        python = environment.python(await asyncio.to_thread(environment.build))
        async with AsyncExitStack() as stack:
            started = []
            for number, (model, port) in enumerate(zip(self._models, free_ports(len(self._models)), strict=True)):
                events, replay = f"ipc://{self._folder}/events-{number}", f"ipc://{self._folder}/replay-{number}"
                more = self._extra(number)
                command = [*_command(python, model, port, events, replay), *more.arguments]
                log = self._folder / f"vllm-{number}.log"
                child = Child(
                    f"vLLM with {model}",
                    command[1:],
                    log,
                    program=command[:1],
                    environment={**_ENVIRONMENT, **more.environment},
                )
                await stack.enter_async_context(child)
                started.append(LabEngine(model, f"127.0.0.1:{port}", events, replay, child))
            await all_of(*[_until_warm(engine) for engine in started])
            self.running = tuple(started)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()


def _command(python: str, model: str, port: int, events: str, replay: str) -> list[str]:
    published = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": events,
        "replay_endpoint": replay,
        "topic": TOPIC,
    }
    return [
        *(python, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(MODELS / model), "--served-model-name", model, ROUTE),  # the route: should the sidecar be late
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(MAX_MODEL_LEN), "--block-size", str(BLOCK_TOKENS)),
        *("--kv-events-config", json.dumps(published)),
        *("--enforce-eager", "--enable-prompt-tokens-details", "--enable-prefix-caching"),
    ]


async def _until_warm(engine: LabEngine) -> None:
    await engine.child.until_ready(f"http://{engine.address}/health", _STARTS_WITHIN_S)
    await while_running(_first_answer(engine), engine.child.ended())


async def _first_answer(engine: LabEngine) -> None:
    message = {"role": "user", "content": words.asked("en", "")}
    body = {"model": engine.model, "messages": [message], "max_tokens": 2}
    async with httpx.AsyncClient(trust_env=False, timeout=_ANSWERS_WITHIN_S) as client:
        try:
            response = await client.post(f"http://{engine.address}/v1/chat/completions", json=body)
        except httpx.TimeoutException:
            raise ChildError(f"vLLM with {engine.model} gave no answer within {_ANSWERS_WITHIN_S:g} s") from None
    if not response.is_success:
        raise ChildError(f"vLLM with {engine.model} answers {response.status_code}: {response.text[:500]}")


def _check_memory(engines: int) -> None:
    """Raises UserError where the servers would not fit: a machine that swaps or kills tells nothing."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return
    lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    if available < engines * _BYTES_EACH:
        fits = available // _BYTES_EACH
        raise UserError(
            f"{engines} vLLM servers need {engines * _BYTES_EACH >> 30} GiB of memory and {available >> 30} GiB are "
            f"available; start at most {fits}"
        )
