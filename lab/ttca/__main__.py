"""`make ttca`, `python -m lab.ttca`: measure time to correct answer on the lab's engines and write the report."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fairlead.demo.children import ChildError
from fairlead.errors import UserError
from lab.__main__ import NAMES
from lab.ttca import figures, measure, report


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.ttca",
        description="The LAAR experiment on real vLLM servers with the lab's tiny models; some twenty minutes.",
        epilog="Example: python -m lab.ttca --questions 2 --repeats 2 --out quick-look",
    )
    parser.add_argument("--learn", type=int, default=12, metavar="N", help="questions to fit on, in each cell")
    parser.add_argument(
        "--questions", type=int, default=6, metavar="N", help="questions a policy and repeat, in each cell"
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="at least 2: intervals are over them")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed makes other questions")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ttca"), metavar="FOLDER")
    options = parser.parse_args()
    if min(options.learn, options.questions) < 1 or options.repeats < 2:
        parser.error("--learn and --questions must be 1 or more, --repeats 2 or more")
    plan = measure.Plan(NAMES, options.learn, options.questions, options.repeats, options.seed)
    command = (
        f"python -m lab.ttca --learn {plan.learnt_from} --questions {plan.questions} --repeats {plan.repeats} "
        f"--seed {plan.seed}"
    )
    with contextlib.suppress(KeyboardInterrupt):
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            results = _measured(command, plan, options.out)
            report.write(results, options.out)
            figures.write_figures(results, options.out)
        except ChildError as error:
            sys.exit(f"error: {error}")
        except UserError as error:
            parser.exit(2, f"error: {error}\n")
        except OSError as error:
            parser.exit(2, f"error: --out {options.out}: cannot be written ({error.strerror}); name another folder\n")
        print(report.markdown(results))


def _measured(command: str, plan: measure.Plan, out: Path) -> measure.Results:
    columns = (TextColumn("questions"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    # Two redraws a second: the bar must not take time from what is measured.
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as progress:
        task = progress.add_task("", total=plan.steps())
        return asyncio.run(measure.run(command, plan, out, lambda: progress.advance(task)))


if __name__ == "__main__":
    main()
