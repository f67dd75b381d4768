"""The same load, in turns, on sidecars that differ in a section of their configuration, each behind its own Envoy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairlead.processes import free_ports
from fairlead.tools.bench.decision import MODEL
from fairlead.tools.bench.processes import addresses_of, child
from fairlead.tools.bench.through_envoy import Effort, Run, Shape, one_run, until_serving
from fairlead.tools.bench.variants import ENDPOINTS, Variant, World, start_envoy, start_sidecar

Sections = Mapping[str, Any]  # of a configuration


async def start(stack: AsyncExitStack, differences: Mapping[str, Sections]) -> World:
    """A variant for each entry of `differences`, by its name, over the same upstream; `stack` ends them."""
    upstream = await stack.enter_async_context(child("fairlead.tools.bench.upstream", str(ENDPOINTS)))
    addresses = await addresses_of(upstream)
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="fairlead-bench-")))
    variants = []
    for number, (name, sections) in enumerate(differences.items()):
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        path = folder / f"{number}.yaml"
        sidecar, admin = await start_sidecar(stack, addresses, listen, path, sections=sections)
        envoy, at = await start_envoy(stack, addresses, listen)
        variants.append(Variant(name, at, MODEL, envoy.pid, sidecar.pid, admin))
    return World(tuple(variants), addresses[0], upstream.pid)


async def in_turns(
    up: World, shapes: Sequence[Shape], effort: Effort, seed: int, advance: Callable[[], None]
) -> list[Run]:
    """All variants under each shape in each round, which begins with another; calls `advance` after each run."""
    for variant in up.variants:
        await until_serving(variant, seed)
    runs = []
    for number in range(effort.rounds):
        first = number % len(up.variants)
        for shape in shapes:
            for variant in (*up.variants[first:], *up.variants[:first]):
                runs.append(await one_run(number, variant, shape, up, effort, seed))
                advance()
    return runs
