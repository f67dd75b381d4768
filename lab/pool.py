"""The whole lab: vLLM servers, and the sidecar and Envoy in front of them."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

import httpx

from fairlead.demo.children import while_running
from fairlead.demo.front import Front
from fairlead.demo.learning import TASK, Learnt
from fairlead.engines.discovery import discover
from lab import words
from lab.engines import MODELS, TOPIC, LabEngine, LabEngines

CAPABILITY: Final = MODELS / f"{TASK}.json"  # as `make ttca` fitted it
START_MS_PER_TOKEN: Final = 0.1  # before anything was measured
_TEACHING_TOKENS: Final = 512
_TEACHING_REQUESTS: Final = 4  # for each model and language


def known(folder: Path) -> Learnt:
    """What the repository says of the tiny models: the capability file goes to `folder`, beside the configuration."""
    copied = Path(shutil.copy(CAPABILITY, folder))
    fits: Mapping[str, Mapping[str, float]] = json.loads(copied.read_bytes())["fit"]["models"]
    return Learnt(copied, {model: fit["prefill_ms_per_token"] for model, fit in fits.items()}, {})


@asynccontextmanager
async def running_front(
    engines: LabEngines, learnt: Learnt, policy: str, folder: Path, **sections: object
) -> AsyncIterator[Front]:
    """The sidecar, following the engines' KV events, and Envoy; taught what a token is before anyone is served."""
    running = engines.running
    speeds = {engine.model: learnt.prefill_ms_per_token.get(engine.model, START_MS_PER_TOKEN) for engine in running}
    served = await discover([engine.address for engine in running])
    events = {e.address: {"events": e.events, "replay": e.replay, "topic": TOPIC} for e in running}
    async with Front(served, Learnt(learnt.capability, speeds, {}), policy, folder, events, sections) as front:
        await while_running(_teach(front, running), engines.ended(), front.ended())
        yield front


async def forget_prompts(engines: LabEngines) -> None:
    """Empty every prefix cache. An engine says so in its KV events only when it next steps: a short prompt makes it."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for engine in engines.running:
            (await client.post(f"http://{engine.address}/reset_prefix_cache")).raise_for_status()
            (await client.post(f"http://{engine.address}/v1/completions", json=_step(engine))).raise_for_status()


def body_of(question: words.Question, model: str) -> dict[str, object]:
    """The request that puts `question`; the answer is one word and an end."""
    message = {"role": "user", "content": question.prompt}
    return {"model": model, "messages": [message], "temperature": 0, "max_tokens": 4}


def _step(engine: LabEngine) -> dict[str, object]:
    return {"model": engine.model, "prompt": [1], "max_tokens": 1}


async def _teach(front: Front, running: tuple[LabEngine, ...]) -> None:
    """Tokens for each estimated one differ by tokenizer, and the sidecar learns them from what it serves."""
    rng = Random("teaching")
    async with httpx.AsyncClient(trust_env=False, timeout=60, base_url=front.url) as client:
        for _ in range(_TEACHING_REQUESTS):
            for language in words.LANGUAGES:
                asked = [words.question(rng, language, _TEACHING_TOKENS) for _ in running]
                bodies = [body_of(question, e.model) for question, e in zip(asked, running, strict=True)]
                answers = await asyncio.gather(*[client.post("/v1/chat/completions", json=body) for body in bodies])
                for answer in answers:
                    answer.raise_for_status()
