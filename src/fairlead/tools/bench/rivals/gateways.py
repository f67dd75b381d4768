"""What stands between client and engines here: nothing, Envoy alone, Fairlead through its Envoy, and each rival.

All of a pool's gateways are started before the first pass, each with one Envoy worker where it has an Envoy, and with
the rival's own defaults but for the log, which is turned down to warnings. A rival that cannot be started is reported.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.errors import UserError
from fairlead.processes import Child, ChildError, free_ports
from fairlead.tools.bench.processes import cpu_s, members, resident_bytes
from fairlead.tools.bench.rivals.install import UnavailableError
from fairlead.tools.bench.rivals.picker import picker
from fairlead.tools.bench.rivals.pins import PINS, SGLANG_ROUTER, SMG, VLLM_ROUTER, Pin
from fairlead.tools.bench.variants import ALONE, FAIRLEAD, FAIRLEAD_GRPCIO, start_envoy, start_sidecar

DIRECT: Final = "no gateway"
NAMES: Final = (DIRECT, ALONE, FAIRLEAD, FAIRLEAD_GRPCIO, *(pin.title for pin in PINS))

_READY_WITHIN_S: Final = 60.0
_REASON_CHARACTERS: Final = 400
_SPECIAL: Final = {
    SGLANG_ROUTER.name: ("launch", "--log-level", "warn"),
    SMG.name: ("launch", "--log-level", "warn"),
    VLLM_ROUTER.name: ("--log-level", "warning"),
}
_STOP_WITHIN_S: Final = 0.5  # smg serves on for 5 s, for the sake of load balancers


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where to send, and whose time and memory to count: all processes of the sessions."""

    name: str
    address: str
    sessions: tuple[int, ...] = ()
    is_chosen: bool = False  # the answer names the endpoint that was chosen, so that it can be checked

    def cpu_s(self) -> float:
        return sum(_of_running(cpu_s, pid) for session in self.sessions for pid in members(session))

    def resident_bytes(self) -> int:
        return int(sum(_of_running(resident_bytes, pid) for session in self.sessions for pid in members(session)))

    def pause(self) -> None:
        """Its processes do nothing until `resume`: a gateway that reads its engines' metrics would slow the others."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for session in self.sessions:
            for pid in members(session):
                os.kill(pid, number)


async def start_ours(stack: AsyncExitStack, addresses: list[str], folder: Path) -> list[Gateway]:
    """No gateway at all, Envoy without a processor, and Fairlead on both of its servers, until `stack` ends."""
    native, grpcio = (f"127.0.0.1:{port}" for port in free_ports(2))
    sidecar, _ = await start_sidecar(stack, addresses, native, folder / "native.yaml")
    old, _ = await start_sidecar(stack, addresses, grpcio, folder / "grpcio.yaml", "grpcio")
    alone, alone_at = await start_envoy(stack, addresses, native, has_processor=False)
    envoy, envoy_at = await start_envoy(stack, addresses, native)
    old_envoy, old_envoy_at = await start_envoy(stack, addresses, grpcio)
    return [
        Gateway(DIRECT, addresses[0]),
        Gateway(ALONE, alone_at, (alone.pid,)),
        Gateway(FAIRLEAD, envoy_at, (envoy.pid, sidecar.pid), is_chosen=True),
        Gateway(FAIRLEAD_GRPCIO, old_envoy_at, (old_envoy.pid, old.pid), is_chosen=True),
    ]


async def start_rival(
    stack: AsyncExitStack, pin: Pin, installed: Path, addresses: Sequence[str], folder: Path
) -> Gateway:
    """A rival that serves until `stack` ends. Raises UnavailableError when it does not start."""
    async with AsyncExitStack() as own:
        try:
            if pin.language == "go":
                started = picker(installed / "bin" / "epp", addresses, folder / f"{pin.name}.yaml")
                address, sessions = await own.enter_async_context(started)
            else:
                child, address = _router(pin, installed / "bin" / pin.name, addresses)
                await own.enter_async_context(child)
                await child.until_ready(f"http://{address}/health", _READY_WITHIN_S)
                sessions = (child.pid,)
        except (ChildError, UserError, TimeoutError, OSError) as error:
            raise UnavailableError(f"it does not start: {_sentence(str(error))}") from None
        await stack.enter_async_context(own.pop_all())
    return Gateway(pin.title, address, sessions)


def _router(pin: Pin, binary: Path, addresses: Sequence[str]) -> tuple[Child, str]:
    port, metrics_port = free_ports(2)
    command = (
        str(binary),
        *_SPECIAL[pin.name],
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)),
        *("--policy", "cache_aware", "--worker-urls", *(f"http://{each}" for each in addresses)),
    )
    return Child(pin.name, command, stop_within_s=_STOP_WITHIN_S), f"127.0.0.1:{port}"


def _sentence(text: str) -> str:
    """What failed, and the last line of its log."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(dict.fromkeys((lines[0], lines[-1])))[:_REASON_CHARACTERS] if lines else "it said nothing"


def _of_running(count: Callable[[int], float], pid: int) -> float:
    try:
        return count(pid)
    except (FileNotFoundError, ProcessLookupError):  # it has ended since its session was listed
        return 0.0
