"""`make lab-judgements`, `python -m lab.judgements`: judged answers of several lab models to the same questions.

`fairlead plan profile` asks real vLLM servers through Envoy, one question at a time, so that its latencies are those of
idle servers, and judges by exact match. Evenly over scripts and prompt lengths. Planning experiments read the file.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Final

from fairlead.errors import UserError
from fairlead.files import replace_file
from fairlead.tools.demo.learning import Learnt
from lab import command, words
from lab.engines import LabEngines
from lab.pool import body_of, running_front

MODELS: Final = ("wren", "heron", "crane")  # the smallest first
LENGTHS_TOKENS: Final = (64, 128, 256, 512, 1024)
FILE: Final = "lab_judgements.jsonl"


def main() -> None:
    about = "Ask three of the lab's models the same questions and judge the answers; some minutes."
    parser = command.parser("lab.judgements", about, "--questions 2 --out quick-look")
    parser.add_argument(
        "--questions", type=command.at_least_one, default=20, metavar="N", help="of each script and length"
    )
    command.add_measurement(parser, "benchmarks/data")
    options = parser.parse_args()
    with command.ending():
        out = command.results_folder(options.out) / FILE
        with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
            folder = Path(name)
            requests, judged = folder / "requests.jsonl", folder / FILE
            requests.write_text("".join(_requests(options.questions, options.seed)), encoding="utf-8")
            asyncio.run(_record(folder, requests, judged))
            replace_file(out, judged.read_bytes())
        print(f"wrote {out}")


async def _record(folder: Path, requests: Path, judged: Path) -> None:
    """Models are asked by name, so their capabilities do not matter."""
    async with (
        LabEngines(MODELS, folder) as engines,
        running_front(engines, Learnt(None, {}, {}), "fairlead", folder) as front,
    ):
        asked = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fairlead", "plan", "profile", str(requests), "--url", front.url),
            *("--models", ",".join(MODELS), "--judge", "lab.exact:score", "--concurrency", "1", "--out", str(judged)),
        )
        if await asked.wait() != 0:
            raise UserError("not every question could be asked and judged (see above); try again")


def _requests(count: int, seed: int) -> list[str]:
    """A line for each question, in the form that `fairlead plan profile` reads."""
    rng = Random(f"judgements {seed}")
    lines = []
    for number in range(count):
        for language in words.LANGUAGES:
            for length in LENGTHS_TOKENS:
                body = body_of(words.question(rng, language, length), "")
                lines.append(json.dumps({"id": f"{language}-{length}-{number}", **body}, ensure_ascii=False) + "\n")
    return lines


if __name__ == "__main__":
    main()
