"""Which gateways are compared, and in which versions. Nothing else names a version; write a newer one here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Pin:
    """One version of a gateway. `source` is its name at PyPI, or the path of its Go command."""

    name: str
    version: str
    language: Literal["python", "go"]
    source: str

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


SGLANG_ROUTER: Final = Pin("sglang-router", "0.3.2", "python", "sglang-router")
SMG: Final = Pin("smg", "1.13.0", "python", "smg")
VLLM_ROUTER: Final = Pin("vllm-router", "0.1.17", "python", "vllm-router")
LLM_D: Final = Pin("llm-d-router", "0.10.0", "go", "github.com/llm-d/llm-d-router/cmd/epp")
# llm-d's picker grew out of this one, of which 1.5.0 is the last version: the same scorers, flags and Envoy settings.
GATEWAY_API: Final = Pin(
    "gateway-api-inference-extension", "1.5.0", "go", "sigs.k8s.io/gateway-api-inference-extension/cmd/epp"
)
PINS: Final = (SGLANG_ROUTER, SMG, VLLM_ROUTER, LLM_D, GATEWAY_API)
