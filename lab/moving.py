"""What servers of the lab need to transfer KV to each other over TCP: Mooncake's library and its connector's settings.

The library comes as a wheel that needs no CUDA. It is kept in a separate folder next to the lab's environment, which
stays unchanged.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairlead.errors import UserError
from fairlead.processes import free_ports
from lab import environment
from lab.servers import Extra

CONTEXT_TOKENS: Final = 8192  # longer than the tiny models were trained for: their answers are noise, but deterministic
ABORT_S: Final = 10

_WHEEL: Final = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
_CONNECTOR: Final = {
    "kv_connector": "CpuMooncakeConnector",
    "kv_connector_module_path": "lab.training.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
}
_REPOSITORY: Final = Path(__file__).parent.parent


def library() -> Path:
    """The folder with Mooncake's library; installs it if it is not there. Raises UserError that says what failed."""
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        raise UserError("Mooncake needs libibverbs, even without RDMA (Debian: apt-get install libibverbs1)") from None
    built = environment.build()
    folder = built.parent / _WHEEL.replace("==", "-")
    if not folder.exists():
        fresh = Path(tempfile.mkdtemp(dir=built.parent))
        try:
            _install(environment.python(built), fresh)
            fresh.rename(folder)  # atomic: half a library would be worse than none
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _install(python: str, folder: Path) -> None:
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*pip, "--target", str(folder), _WHEEL], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{_WHEEL} cannot be installed:\n{done.stderr.strip()[-1000:]}")


class Moving:
    """Settings of `LabEngines` for servers that copy KV; `bootstraps` are their bootstrap servers, host:port."""

    def __init__(self, engines: int) -> None:
        self.bootstraps = [f"127.0.0.1:{port}" for port in free_ports(engines)]
        self._library = library()

    def __call__(self, number: int) -> Extra:
        arguments: Sequence[str] = (
            *("--kv-transfer-config", json.dumps(_CONNECTOR)),
            *("--max-model-len", str(CONTEXT_TOKENS)),
            *("--hf-overrides", json.dumps({"max_position_embeddings": CONTEXT_TOKENS})),
        )
        return Extra(
            arguments,
            {
                "PYTHONPATH": f"{self._library}:{_REPOSITORY}",
                "VLLM_MOONCAKE_BOOTSTRAP_PORT": self.bootstraps[number].rpartition(":")[2],
                "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": str(ABORT_S),
                "VLLM_HOST_IP": "127.0.0.1",
            },
        )
