"""Adapters (LoRA) for the lab's models, with weights at random: small, and different from each other."""

from __future__ import annotations

import json
import struct
from array import array
from pathlib import Path
from random import Random
from typing import Any, Final

from lab.servers import MODELS

RANK: Final = 8  # the least that vLLM can be told to expect
_TARGETS: Final = ("q_proj", "v_proj")


def write_adapter(folder: Path, model: str, seed: int) -> Path:
    """As PEFT writes one: its configuration, and a safetensors file."""
    config: dict[str, Any] = json.loads((MODELS / model / "config.json").read_text(encoding="utf-8"))
    into, out = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    rng, header, data = Random(seed), dict[str, Any](), bytearray()
    for layer in range(config["num_hidden_layers"]):
        for target in _TARGETS:
            for part, shape in (("lora_A", (RANK, into)), ("lora_B", (out, RANK))):
                begin = len(data)
                data += array("f", (rng.gauss(0, 0.3) for _ in range(shape[0] * shape[1]))).tobytes()
                name = f"base_model.model.model.layers.{layer}.self_attn.{target}.{part}.weight"
                header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, len(data))}
    described = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(described)) + described + data)
    peft = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "base_model_name_or_path": model}
    lora = {"r": RANK, "lora_alpha": RANK, "target_modules": list(_TARGETS)}
    (folder / "adapter_config.json").write_text(json.dumps(peft | lora), encoding="utf-8")
    return folder
