"""Servers of the lab: one each, on this machine's CPU, with everything enabled that a router can observe.

What a server of each kind of engine is started with is in `lab.servers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never

import httpx

from fairlead.errors import UserError
from fairlead.processes import Assembly, Child, ChildError, free_ports
from fairlead.tasks import all_of, forever, while_running
from lab import environment, words
from lab.servers import NOTHING_MORE, SERVERS, Extra, Server, Start

_STARTS_WITHIN_S: Final = 420.0  # some 60 s of one core for each, and all start at once
_ANSWERS_WITHIN_S: Final = 240.0  # the first answer includes warm-up: 20 s of one core


@dataclass(frozen=True, slots=True)
class LabEngine:
    """A running server. `events` and `replay` are ZMQ addresses, where it publishes anything."""

    model: str
    kind: str  # the engine's dialect
    address: str
    events: str
    replay: str
    child: Child

    @property
    def server(self) -> Server:
        return SERVERS[self.kind]


class LabEngines(Assembly):
    """`async with LabEngines(models, folder) as engines:` starts a server for each name in `models`, and stops them.

    A name is of a model, on vLLM, or `sglang:MODEL`. `extra` gives additional settings by server index; without
    `observable` a server has its default flags, apart from what a CPU needs. Builds the environments if needed. Raises
    UserError for what the user can change, ChildError if a server does not start.
    """

    def __init__(
        self,
        models: Sequence[str],
        folder: Path,
        extra: Callable[[int], Extra] | None = None,
        *,
        quiet: bool = False,
        observable: bool = True,
    ) -> None:
        self.running: tuple[LabEngine, ...] = ()
        self._models = models
        self._folder = folder
        self._extra = extra if extra is not None else lambda _: NOTHING_MORE
        self._quiet = quiet
        self._observable = observable

    async def ended(self) -> Never:
        """Raise when a server ends by itself."""
        await while_running(forever(), *[engine.child.ended() for engine in self.running])

    async def _start(self, stack: AsyncExitStack) -> None:
        wanted = [_kind_and_model(name) for name in self._models]
        _check_memory([kind for kind, _ in wanted])
        pythons = {kind: await asyncio.to_thread(environment.build, SERVERS[kind].contents) for kind, _ in wanted}
        started = []
        ports = free_ports(3 * len(wanted))
        for number, (kind, model) in enumerate(wanted):
            server, more = SERVERS[kind], self._extra(number)
            quiet = server.quiet if self._quiet else NOTHING_MORE
            start = Start(environment.python(pythons[kind]), model, self._folder, number, *ports[3 * number :][:3])
            events, replay = server.publishes(start)
            observable = server.observable(events, replay) if self._observable else ()
            log = self._folder / f"{kind}-{number}.log"
            child = Child(
                f"{server.contents.title} with {model}",
                [*server.command(start), *observable, *quiet.arguments, *more.arguments],
                log,
                environment={**server.environment, **quiet.environment, **more.environment},
            )
            await stack.enter_async_context(child)
            started.append(LabEngine(model, kind, f"127.0.0.1:{start.port}", events, replay, child))
        await all_of(*[_until_warm(engine) for engine in started])
        self.running = tuple(started)


def _kind_and_model(name: str) -> tuple[str, str]:
    kind, colon, model = name.partition(":")
    return (kind, model) if colon else ("vllm", name)


async def _until_warm(engine: LabEngine) -> None:
    await engine.child.until_ready(f"http://{engine.address}{engine.server.ready_path}", _STARTS_WITHIN_S)
    await while_running(_first_answer(engine), engine.child.ended())


async def _first_answer(engine: LabEngine) -> None:
    message = {"role": "user", "content": words.asked("en", "")}
    body = {"model": engine.model, "messages": [message], "max_tokens": 2, **engine.server.first_request}
    async with httpx.AsyncClient(trust_env=False, timeout=_ANSWERS_WITHIN_S) as client:
        try:
            response = await client.post(f"http://{engine.address}/v1/chat/completions", json=body)
        except httpx.TimeoutException:
            raise ChildError(f"{_title(engine)} gave no answer within {_ANSWERS_WITHIN_S:g} s") from None
    if not response.is_success:
        raise ChildError(f"{_title(engine)} answers {response.status_code}: {response.text[:500]}")


def _title(engine: LabEngine) -> str:
    return f"{engine.server.contents.title} with {engine.model}"


def _check_memory(kinds: Sequence[str]) -> None:
    """Raises UserError if the servers would not fit: swapping or killed processes make results useless."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return
    lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    available, needed = int(lines["MemAvailable"].split()[0]) * 1024, sum(SERVERS[kind].bytes_each for kind in kinds)
    if available < needed:
        raise UserError(
            f"{len(kinds)} servers need {needed >> 30} GiB of memory and {available >> 30} GiB are available; "
            "start fewer"
        )
