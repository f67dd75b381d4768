"""A cascade like the paper's, small, medium and large, and a sample of requests whose difficulty decides the scores.

Times follow from parameters and an H100's speed (990 TFLOPS, 3.35 TB/s), at what fraction of it engines commonly reach.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml

from fairlead.tools.plan.routing import Profile
from fairlead.tools.plan.settings import CascadeSettings

SMALL, MEDIUM, LARGE = "small-7b", "medium-70b", "large-671b-int4"


def h100_model(
    name: str, *, weights_gib: float, flops_billions: float, read_gib: float, kv_kib: float, **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "weights_gib": weights_gib,
        "kv_kib_per_token": kv_kib,
        "prefill_ms_per_token": 2 * flops_billions / (990e3 * 0.45) * 1e3,
        "decode_ms_per_step": read_gib * 2**30 / (3.35e12 * 0.6) * 1e3,
        "decode_ms_per_sequence": 0.03 * (flops_billions / 7) ** 0.5,
        **more,
    }


def settings(gpus: int, rate_per_s: float, *, models: int = 3, **model_keys: Any) -> CascadeSettings:
    """`large` is a mixture of experts: the tokens of one step together read most of its weights."""
    family = [
        h100_model(SMALL, weights_gib=13, flops_billions=7, read_gib=13, kv_kib=56, **model_keys),
        h100_model(MEDIUM, weights_gib=130, flops_billions=70, read_gib=130, kv_kib=320, **model_keys),
        h100_model(LARGE, weights_gib=345, flops_billions=37, read_gib=200, kv_kib=70, **model_keys),
    ]
    document = {
        "gpus": {"count": gpus, "memory_gib": 80},
        "models": family[:models],
        "rate_per_s": rate_per_s,
        "judge_ms": 270.0,
    }
    return CascadeSettings.model_validate(document)


def profile(requests: int = 400, *, models: int = 3, seed: int = 1, answers: float = 1.0) -> Profile:
    """`answers` scales their lengths: short ones are simulated in less time."""
    rng = np.random.default_rng(seed)
    difficulty = rng.beta(2, 2.2, requests)
    ability = np.array([0.45, 0.68, 0.93])
    margin = 6 * (ability[None] - difficulty[:, None]) + rng.normal(0, 0.8, (requests, 3))
    score = np.round(100 / (1 + np.exp(-margin)))[:, :models]
    prompt_tokens = np.maximum(20, rng.lognormal(6, 0.8, requests) * (1 + difficulty / 2)).round()
    lengths = answers * rng.lognormal(6, 0.6, (requests, 3)) * (1 + 0.6 * difficulty[:, None])
    output_tokens = np.maximum(5, lengths).round()[:, :models]
    return Profile(
        models=(SMALL, MEDIUM, LARGE)[:models],
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        score=score,
        quality=score,
    )


def write_inputs(folder: Path) -> None:
    """cascade.yaml and profile.jsonl, as `fairlead plan` reads them."""
    document = settings(12, 4.0, models=2, max_pp=1).model_dump()
    document["models"] = [{key: value for key, value in m.items() if key != "replicas"} for m in document["models"]]
    (folder / "cascade.yaml").write_text(yaml.safe_dump(document))
    sample = profile(120, models=2)
    with (folder / "profile.jsonl").open("wb") as file:
        for row in range(120):
            for column, model in enumerate(sample.models):
                entry = {
                    "request": str(row), "model": model, "prompt_tokens": int(sample.prompt_tokens[row]),
                    "output_tokens": int(sample.output_tokens[row, column]), "latency_ms": 1.0,
                    "score": float(sample.score[row, column]),
                }  # fmt: skip
                file.write(msgspec.json.encode(entry) + b"\n")
