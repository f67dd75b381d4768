"""`make lab`, `python -m lab [MODEL...]`: real vLLM or SGLang servers behind Envoy and the sidecar, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from fairlead.policies import policy_names
from fairlead.tasks import forever, while_running
from fairlead.tools.demo.traffic import ROUTE
from lab import command, words
from lab.engines import LabEngines
from lab.pool import body_of, known, running_front
from lab.servers import MODELS, SERVERS

NAMES = tuple(sorted(path.name for path in MODELS.iterdir() if path.is_dir()))
POOL = tuple(name for name in NAMES if name != "crane")  # models of similar speed; crane is the large one for a cascade


def main() -> None:
    about = "Start a server on this machine's CPU for each model, and the sidecar and Envoy in front."
    parser = command.parser("lab", about, "wren sglang:wren --policy laar")
    add_models(parser)
    parser.add_argument("--engine", default="vllm", choices=list(SERVERS), help="of the models that name none")
    parser.add_argument(
        "--policy", default="fairlead", choices=policy_names(), metavar="NAME", help="see docs/policies.md"
    )
    options = parser.parse_args()
    models = models_of(parser, options.models or POOL, options.engine)
    with command.ending():
        asyncio.run(_run(models, options.policy))


def add_models(to: argparse.ArgumentParser, by_default: Sequence[str] = POOL) -> None:
    """The argument of commands that start servers; `models_of` reads it."""
    which = f"one of {', '.join(NAMES)}, or ENGINE:MODEL; {', '.join(by_default)} without any"
    to.add_argument("models", nargs="*", metavar="MODEL", help=which)


def models_of(parser: argparse.ArgumentParser, named: Sequence[str], engine: str) -> list[str]:
    """`ENGINE:MODEL` of each; `engine` is of those that name none. Ends the command where one is unknown."""
    models = [each if ":" in each else f"{engine}:{each}" for each in named]
    unknown = [each for each in models if each not in {f"{kind}:{name}" for kind in SERVERS for name in NAMES}]
    if unknown:
        parser.error(f"{unknown[0]} is not a model of the lab; name some of {', '.join(NAMES)}")
    return models


async def _run(models: Sequence[str], policy: str) -> None:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        folder = Path(name)
        print(f"Starting {', '.join(models)}: a minute or two.", flush=True)
        async with (
            LabEngines(models, folder, quiet=True) as engines,
            running_front(engines, known(folder), policy, folder) as front,
        ):
            for engine in engines.running:
                print(f"{engine.kind:6} {engine.model:8} http://{engine.address}/metrics   {folder}/", flush=True)
            question = words.question(Random(0), "en", 64)
            print(_addresses(front.url, front.admin_url, question), flush=True)
            await while_running(forever(), engines.ended(), front.ended())


def _addresses(url: str, admin_url: str, question: words.Question) -> str:
    body = json.dumps(body_of(question, ROUTE), ensure_ascii=False)
    return f"""
  gateway      {url}/v1
  status page  {admin_url}/
  metrics      {admin_url}/metrics
  try          curl -i {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'
               (the right answer is {question.expected})

Ctrl-C ends it."""


if __name__ == "__main__":
    main()
