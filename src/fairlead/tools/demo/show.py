"""The demo from start to end: engines, learning, three policies on the same questions, the comparison."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from fairlead.engines.introduction import FoundEngine
from fairlead.tasks import forever, while_running
from fairlead.tools.demo.display import Phase, comparison, shown
from fairlead.tools.demo.engines import DemoEngines
from fairlead.tools.demo.front import Front
from fairlead.tools.demo.learning import Learnt, learn
from fairlead.tools.demo.questions import LANGUAGES, Question, questions
from fairlead.tools.demo.results import QuestionResult
from fairlead.tools.demo.traffic import ASKERS, MAX_ATTEMPTS, ROUTE, ask_all

POLICIES: Final = {
    "session_affinity": "Session affinity: a conversation stays where it began",
    "least_request": "Load-aware (least_request): the endpoint with the fewest requests",
    "laar": "LAAR: the least expected time to a correct answer",
}
OURS: Final = "laar"
MOST_LEARNT_FROM: Final = 144  # for each model, a third of them in each language
_LENGTH_THAT_FAVOURS_LOAD_TOKENS: Final = 65536
_WHAT_WAS_CHOSEN: Final = (
    "The simulated models and these lengths were chosen to show accuracy at work. At 64K, where one model does "
    "most of the work that can succeed, LAAR had the higher mean when we tried: see --lengths 4096,65536."
)
UNKNOWN_MODEL_LEN: Final = 8192  # if an engine does not report it


@dataclass(frozen=True, slots=True)
class Options:
    """`engines` are addresses of real ones; without any, the demo starts its own. `questions` are those of a policy.

    A length given twice in `lengths_tokens` comes twice as often.
    """

    engines: tuple[str, ...]
    lengths_tokens: tuple[int, ...]
    questions: int
    seed: int
    keep: bool


async def run(options: Options, console: Console) -> None:
    """Returns when everything is shown and stopped. With `options.keep` it runs until cancelled."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-demo-")))
        engines = await stack.enter_async_context(DemoEngines(options.engines, folder))
        console.print(_pool_sentence(engines.served), highlight=False)
        lengths = _fitting(options.lengths_tokens, engines.served)
        learnt = await _learn(engines, _questions(options, lengths, learning=True), folder, console)
        front = await stack.enter_async_context(Front(engines.served, learnt, next(iter(POLICIES)), folder))
        console.print(_addresses(front), highlight=False, soft_wrap=True)
        asked = _questions(options, lengths, learning=False)
        results = {policy: await _ask(policy, asked, engines, front, console) for policy in POLICIES}
        console.print(comparison(results, OURS))
        if not options.engines and max(lengths) < _LENGTH_THAT_FAVOURS_LOAD_TOKENS:
            console.print(f"[dim]{_WHAT_WAS_CHOSEN}[/]", highlight=False)
        if options.keep:
            console.print(_addresses(front), highlight=False, soft_wrap=True)
            console.print("Everything stays up; Ctrl-C ends it.")
            with contextlib.suppress(asyncio.CancelledError):  # the normal end of a demo that is kept
                await while_running(forever(), engines.ended(), front.ended())


def _questions(options: Options, lengths_tokens: Sequence[int], *, learning: bool) -> list[Question]:
    """Questions for learning and for measuring are different, as in the paper's two splits."""
    count = min(options.questions, MOST_LEARNT_FROM) if learning else options.questions
    return questions(2 * options.seed + learning, LANGUAGES, lengths_tokens, count)


def _fitting(lengths_tokens: Sequence[int], served: Sequence[FoundEngine]) -> tuple[int, ...]:
    """Twice as long must fit as well: estimates of tokens are rough where a tokenizer is unusual."""
    shortest_tokens = min(engine.max_model_len or UNKNOWN_MODEL_LEN for engine in served)
    fitting = tuple(length for length in lengths_tokens if 2 * length <= shortest_tokens)
    return fitting or (shortest_tokens // 2,)


async def _learn(engines: DemoEngines, asked: Sequence[Question], folder: Path, console: Console) -> Learnt:
    models = len({engine.model for engine in engines.served})
    phase = Phase(f"Learning how good each model is, from {len(asked)} other questions", len(asked) * models)
    with shown(console, phase):
        learnt = await while_running(learn(engines.served, asked, folder, phase.advance), engines.ended())
    for model, ms_per_token in learnt.prefill_ms_per_token.items():
        right = learnt.right[model]
        console.print(f"  {escape(model)}: {right:.0%} right, {ms_per_token:.4f} ms a prompt token", highlight=False)
    console.print()
    return learnt


async def _ask(
    policy: str, asked: Sequence[Question], engines: DemoEngines, front: Front, console: Console
) -> list[QuestionResult]:
    if not await engines.forget_prompts():
        console.print("[dim]An engine has no /reset_prefix_cache: it may still hold prompts of the phase before.[/]")
    await front.use(policy)
    phase = Phase(POLICIES[policy], len(asked))
    with shown(console, phase):
        return await while_running(ask_all(front.url, asked, phase.add), engines.ended(), front.ended())


def _pool_sentence(served: Sequence[FoundEngine]) -> str:
    pool = ", ".join(f"{escape(engine.model)} at {engine.address}" for engine in served)
    return (
        f"{len(served)} engines: {pool}.\n{ASKERS} askers at a time, up to {MAX_ATTEMPTS} attempts a question, "
        "temperature 0. A model that was wrong is wrong again when it is asked again.\n"
    )


def _addresses(front: Front) -> str:
    body = json.dumps({"model": ROUTE, "messages": [{"role": "user", "content": "Hello"}]})
    return f"""
  gateway          {front.url}/v1          models: {front.url}/v1/models
  status page      {front.admin_url}/
  decisions        {front.admin_url}/debug/decisions
  metrics          {front.admin_url}/metrics
  Envoy's admin    {front.envoy_admin_url}
  configuration    {front.config_path}
  try              curl -i {front.url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'
"""
