"""What SGLang servers of the lab need to do one half of each request: one computes prompts, and another answers.

KV goes over TCP by Mooncake's library, which is that of `lab.moving`.
"""

from __future__ import annotations

from fairlead.processes import free_ports
from lab.moving import mooncake_library
from lab.servers import Extra


class Halves:
    """Settings of `LabEngines` for two servers: the first computes prompts, and meets the other at `bootstrap`."""

    def __init__(self) -> None:
        (port,) = free_ports(1)
        self.bootstrap = f"127.0.0.1:{port}"
        self._library = mooncake_library()

    def __call__(self, number: int) -> Extra:
        arguments = (
            *("--disaggregation-mode", "decode" if number else "prefill"),
            *("--disaggregation-transfer-backend", "mooncake_tcp"),
            *("--disaggregation-bootstrap-port", self.bootstrap.rpartition(":")[2]),
            *("--disaggregation-decode-retraction-backup", "cpu_tensor"),  # the default pins memory for a GPU
        )
        # What is cached is not sent before the rest: its order is kept by events of a GPU.
        return Extra(
            arguments, {"PYTHONPATH": str(self._library), "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "false"}
        )
