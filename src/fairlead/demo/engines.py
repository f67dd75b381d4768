"""The engines of the demo: simulated ones as child processes, or real ones that run already."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Never, Self

from fairlead.demo import world
from fairlead.demo.children import Child, all_of, free_ports, while_running
from fairlead.demo.traffic import client_of
from fairlead.engines.discovery import FoundEngine, discover


class Engines:
    """`async with Engines(addresses, folder) as engines:`; without addresses, the engines are simulated."""

    def __init__(self, addresses: Sequence[str], folder: Path) -> None:
        self.served: tuple[FoundEngine, ...] = ()
        self._addresses = tuple(addresses)
        self._folder = folder
        self._children: list[Child] = []
        self._stack = AsyncExitStack()

    async def ended(self) -> Never:
        """Raise when a simulated engine ends; real ones are not ours to watch."""
        await while_running(forever(), *[child.ended() for child in self._children])

    async def forget_prompts(self) -> bool:
        """Empty the prefix caches, so that each policy starts cold; False where an engine does not offer it."""
        forgotten = []

        async def forget(address: str) -> None:
            async with client_of(f"http://{address}") as client:
                forgotten.append((await client.post("/reset_prefix_cache")).is_success)

        await all_of(*[forget(engine.address) for engine in self.served])
        return all(forgotten)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if not self._addresses:
                self._addresses = await self._start(stack)
            self.served = tuple(await discover(self._addresses))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self, stack: AsyncExitStack) -> tuple[str, ...]:
        accuracy = self._folder / "accuracy.json"
        world.write_accuracy(accuracy)
        models = {model.name: model for model in world.MODELS}
        ports = free_ports(len(world.ENGINES))
        for name, port in zip(world.ENGINES, ports, strict=True):
            arguments = world.engine_arguments(models[name], port, accuracy)
            child = Child(f"the engine of {name}", arguments, self._folder / f"engine-{port}.log")
            self._children.append(await stack.enter_async_context(child))
        ready = [
            child.until_ready(f"http://127.0.0.1:{port}/health")
            for child, port in zip(self._children, ports, strict=True)
        ]
        await all_of(*ready)
        return tuple(f"127.0.0.1:{port}" for port in ports)


async def forever() -> Never:
    while True:
        await asyncio.Event().wait()
