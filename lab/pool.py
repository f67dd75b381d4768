"""The whole lab: its servers, and the sidecar and Envoy in front of them."""

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

from fairlead.engines.introduction import discover
from fairlead.tasks import while_running
from fairlead.tools.demo.front import Front
from fairlead.tools.demo.learning import TASK, Learnt
from lab import words
from lab.engines import LabEngine, LabEngines
from lab.servers import A_CONNECTION_EACH, MODELS, TOPIC

CAPABILITY: Final = MODELS / f"{TASK}.json"  # as `make ttca` fitted it
START_MS_PER_TOKEN: Final = 0.1  # before anything was measured
_FORGET_WITHIN_S: Final = 120.0
_TEACHING_TOKENS: Final = 512
_TEACHING_REQUESTS: Final = 4  # for each model and language
_PROCESSOR_TIMEOUT_MS: Final = 60_000  # engines take all cores: a sidecar that waits for one is not away


def known(folder: Path) -> Learnt:
    """The tiny models' settings; the capability file is written to `folder`, next to the configuration."""
    copied = Path(shutil.copy(CAPABILITY, folder))
    fits: Mapping[str, Mapping[str, float]] = json.loads(copied.read_bytes())["fit"]["models"]
    return Learnt(copied, {model: fit["prefill_ms_per_token"] for model, fit in fits.items()}, {})


@asynccontextmanager
async def running_front(
    engines: LabEngines, learnt: Learnt, policy: str, folder: Path, /, **sections: object
) -> AsyncIterator[Front]:
    """The sidecar, following the engines' KV events, and Envoy; warmed up to learn token counts."""
    running = engines.running
    speeds = {engine.model: learnt.prefill_ms_per_token.get(engine.model, START_MS_PER_TOKEN) for engine in running}
    served = await discover([engine.address for engine in running])
    events = {e.address: {"events": e.events, "replay": e.replay, "topic": TOPIC} for e in running}
    patient = {"gateway": {"processor_timeout_ms": _PROCESSOR_TIMEOUT_MS}} | sections
    async with Front(served, Learnt(learnt.capability, speeds, {}), policy, folder, events, patient) as front:
        await while_running(_teach(front, running), engines.ended(), front.ended())
        yield front


async def forget_prompts(engines: LabEngines) -> None:
    """Empty every prefix cache. A vLLM may refuse for a step or two after its last answer."""
    patient = httpx.AsyncClient(trust_env=False, timeout=60, limits=A_CONNECTION_EACH)
    async with patient as client, asyncio.timeout(_FORGET_WITHIN_S):
        for engine in engines.running:
            while not await _has_forgotten(client, engine):
                pass  # each try is a step of the engine


async def _has_forgotten(client: httpx.AsyncClient, engine: LabEngine) -> bool:
    """Engines report it in KV events only at their next step: a short prompt triggers one.

    With the blocks of a request that was only just answered, vLLM does nothing and says `{"success": false}`.
    """
    answer = (await client.post(f"http://{engine.address}{engine.server.forget_path}")).raise_for_status()
    (await client.post(f"http://{engine.address}/v1/completions", json=_step(engine))).raise_for_status()
    return b"false" not in answer.content


def body_of(question: words.Question, model: str) -> dict[str, object]:
    """The request that asks `question`; the answer is one word and an end token."""
    message = {"role": "user", "content": question.prompt}
    return {"model": model, "messages": [message], "temperature": 0, "max_tokens": 4}


def _step(engine: LabEngine) -> dict[str, object]:
    return {"model": engine.model, "prompt": [1], "max_tokens": 1}


async def _teach(front: Front, running: tuple[LabEngine, ...]) -> None:
    """Send some requests, from which the sidecar learns how many tokens the tokenizer makes of an estimated one."""
    rng = Random("teaching")
    async with httpx.AsyncClient(trust_env=False, timeout=60, base_url=front.url) as client:
        for _ in range(_TEACHING_REQUESTS):
            for language in words.LANGUAGES:
                asked = [words.question(rng, language, _TEACHING_TOKENS) for _ in running]
                bodies = [body_of(question, e.model) for question, e in zip(asked, running, strict=True)]
                answers = await asyncio.gather(*[client.post("/v1/chat/completions", json=body) for body in bodies])
                for answer in answers:
                    answer.raise_for_status()
