"""`make ttca`, `python -m lab.ttca`: measure time to correct answer on the lab's engines and write the report."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fairlead.tools.study import progress_bar
from lab import command
from lab.__main__ import POOL, add_models, models_of
from lab.ttca import figures, measure, report


def main() -> None:
    about = "The LAAR experiment on real vLLM and SGLang servers with the lab's tiny models; some minutes."
    parser = command.parser("lab.ttca", about, "heron sglang:stork --questions 2 --repeats 2 --out quick-look")
    add_models(parser)
    count = command.at_least_one
    parser.add_argument("--learn", type=count, default=12, metavar="N", help="questions to fit on, in each cell")
    parser.add_argument(
        "--questions", type=count, default=6, metavar="N", help="questions a policy and repeat, in each cell"
    )
    parser.add_argument("--repeats", type=count, default=5, metavar="N", help="at least 2: intervals are over them")
    command.add_measurement(parser, "benchmarks/results/ttca")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error("--repeats must be 2 or more")
    servers = tuple(models_of(parser, options.models or POOL, "vllm"))
    if len({measure.model_of(server) for server in servers}) < len(servers):
        parser.error("each model on one server: a question that failed goes to another model")
    plan = measure.Plan(servers, options.learn, options.questions, options.repeats, options.seed)
    named = "".join(f"{each} " for each in options.models)
    asked = (
        f"python -m lab.ttca {named}--learn {plan.learnt_from} --questions {plan.questions} --repeats {plan.repeats} "
        f"--seed {plan.seed}"
    )
    with command.ending():
        out = command.results_folder(options.out)
        results = _measured(asked, plan, out)
        figures.write_figures(results, out)
        report.write(results, out)


def _measured(asked: str, plan: measure.Plan, out: Path) -> measure.Results:
    with progress_bar("questions") as progress:
        task = progress.add_task("ttca", total=plan.steps())
        return asyncio.run(measure.run(asked, plan, out, lambda: progress.advance(task)))


if __name__ == "__main__":
    main()
