"""The engines of the demo: simulated ones as child processes, or real ones that are running."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Never

from fairlead.engines.introduction import FoundEngine, discover
from fairlead.processes import Assembly, Child, free_ports, python_module
from fairlead.tasks import all_of, forever, while_running
from fairlead.tools.demo import world
from fairlead.tools.demo.traffic import client_of


class DemoEngines(Assembly):
    """`async with Engines(addresses, folder) as engines:`; without addresses, the engines are simulated."""

    def __init__(self, addresses: Sequence[str], folder: Path) -> None:
        self.served: tuple[FoundEngine, ...] = ()
        self._addresses = tuple(addresses)
        self._folder = folder
        self._children: list[Child] = []

    async def ended(self) -> Never:
        """Raise when a simulated engine ends; real ones are not watched."""
        await while_running(forever(), *[child.ended() for child in self._children])

    async def forget_prompts(self) -> bool:
        """Empty the prefix caches, so that each policy starts cold; False where an engine does not offer it."""
        forgotten = []

        async def forget(address: str) -> None:
            async with client_of(f"http://{address}") as client:
                forgotten.append((await client.post("/reset_prefix_cache")).is_success)

        await all_of(*[forget(engine.address) for engine in self.served])
        return all(forgotten)

    async def _start(self, stack: AsyncExitStack) -> None:
        if not self._addresses:
            self._addresses = await self._simulated(stack)
        self.served = tuple(await discover(self._addresses))

    async def _simulated(self, stack: AsyncExitStack) -> tuple[str, ...]:
        accuracy = self._folder / "accuracy.json"
        world.write_accuracy(accuracy)
        models = {model.name: model for model in world.MODELS}
        ports = free_ports(len(world.ENGINES))
        for name, port in zip(world.ENGINES, ports, strict=True):
            arguments = world.engine_arguments(models[name], port, accuracy)
            command = python_module("fairlead", *arguments)
            child = Child(f"the engine of {name}", command, self._folder / f"engine-{port}.log")
            self._children.append(await stack.enter_async_context(child))
        ready = [
            child.until_ready(f"http://127.0.0.1:{port}/health")
            for child, port in zip(self._children, ports, strict=True)
        ]
        await all_of(*ready)
        return tuple(f"127.0.0.1:{port}" for port in ports)
