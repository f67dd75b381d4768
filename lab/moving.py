"""What vLLM servers of the lab need to transfer KV to each other over TCP: a library, and its connector's settings.

A library comes as wheels that need no GPU. It is kept in a separate folder next to the lab's environment, which stays
unchanged.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from fairlead.errors import UserError
from fairlead.processes import free_ports
from lab import environment
from lab.servers import Extra

CONTEXT_TOKENS: Final = 8192  # longer than the tiny models were trained for: their answers are noise, but deterministic
ABORT_S: Final = 10

MOONCAKE: Final = ("mooncake-transfer-engine-non-cuda==0.3.13.post1",)
_NIXL: Final = ("nixl==1.5.1", "nixl-cu13==1.5.1")  # torch's build may be for CUDA 13, and any serves one for CPUs
_NIXL_BLOCKS: Final = 2048  # servers tell each other of every block when they meet; by default there are 16 times more
_EACH_WAY: Final = "kv_both"
_REPOSITORY: Final = Path(__file__).parent.parent


def library(wheels: Sequence[str]) -> Path:
    """The folder with what `wheels` install; made if it is not there. Raises UserError that says what failed."""
    built = environment.build()
    folder = built.parent / wheels[0].replace("==", "-")
    if not folder.exists():
        fresh = Path(tempfile.mkdtemp(dir=built.parent))
        try:
            _install(environment.python(built), wheels, fresh)
            fresh.rename(folder)  # atomic: half a library would be worse than none
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def mooncake_library() -> Path:
    """As `library`, and what it needs of the system is there."""
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        raise UserError("Mooncake needs libibverbs, even without RDMA (Debian: apt-get install libibverbs1)") from None
    return library(MOONCAKE)


def _install(python: str, wheels: Sequence[str], folder: Path) -> None:
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*pip, "--target", str(folder), *wheels], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{' '.join(wheels)} cannot be installed:\n{done.stderr.strip()[-1000:]}")


class Moving(Protocol):
    """Settings of `LabEngines` for servers that copy KV."""

    kv_transfer: Sequence[Mapping[str, str]]  # of each server, as the sidecar's configuration has it

    def __call__(self, number: int) -> Extra: ...


class OverMooncake:
    """`bootstraps` are the servers' bootstrap servers, host:port."""

    def __init__(self, engines: int) -> None:
        self.bootstraps = [f"127.0.0.1:{port}" for port in free_ports(engines)]
        self.kv_transfer = [{"connector": "mooncake", "bootstrap": each} for each in self.bootstraps]
        self._library = mooncake_library()

    def __call__(self, number: int) -> Extra:
        connector = {
            "kv_connector": "CpuMooncakeConnector",
            "kv_connector_module_path": "lab.training.connector",
            "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
        }
        return Extra(
            _arguments(connector),
            {
                "PYTHONPATH": f"{self._library}:{_REPOSITORY}",
                "VLLM_MOONCAKE_BOOTSTRAP_PORT": self.bootstraps[number].rpartition(":")[2],
                "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": str(ABORT_S),
                "VLLM_HOST_IP": "127.0.0.1",
            },
        )


class OverNixl:
    """A server tells in its answer where the KV is to be fetched. `roles` are vLLM's, of each server in turn."""

    def __init__(self, engines: int, roles: Sequence[str] = (_EACH_WAY,)) -> None:
        self._roles = roles
        self.kv_transfer = [{"connector": "nixl"}] * engines
        self._ports = free_ports(engines)
        self._library = library(_NIXL)

    def __call__(self, number: int) -> Extra:
        connector = {
            "kv_connector": "PausingNixlConnector",
            "kv_connector_module_path": "lab.training.nixl_connector",
        }
        few = ("--num-gpu-blocks-override", str(_NIXL_BLOCKS))
        return Extra(
            [*_arguments(connector, self._roles[number % len(self._roles)]), *few],
            {
                "PYTHONPATH": f"{self._library}:{_REPOSITORY}",
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self._ports[number]),
                "UCX_TLS": "tcp",
            },
        )


class NixlHalves(OverNixl):
    """The first computes prompts for the second, and KV goes no other way: what is to replace vLLM's `kv_both`."""

    def __init__(self, engines: int) -> None:
        super().__init__(engines, ("kv_producer", "kv_consumer"))


def _arguments(connector: Mapping[str, object], role: str = _EACH_WAY) -> Sequence[str]:
    settings = {**connector, "kv_role": role, "kv_load_failure_policy": "recompute"}
    return (
        *("--kv-transfer-config", json.dumps(settings)),
        *("--max-model-len", str(CONTEXT_TOKENS)),
        *("--hf-overrides", json.dumps({"max_position_embeddings": CONTEXT_TOKENS})),
    )
