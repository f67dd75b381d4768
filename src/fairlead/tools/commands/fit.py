"""`fairlead fit`: from a table of attempts to capability files, printing how good they are."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.errors import UserError, how_to_install

if TYPE_CHECKING:
    from polars import DataFrame
    from rich.console import Console
    from rich.table import Table

    from fairlead.tools.fit import FittedModel

_FITTING_LIBRARIES = {"sklearn", "polars", "matplotlib", "numpy", "scipy"}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(fit)


def fit(
    attempts: Annotated[
        str,
        typer.Argument(
            help="Table of attempts: .csv, .jsonl or .parquet; or a folder or s3:// place of decisions.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("models"),
    seed: Annotated[
        int, typer.Option(min=0, help="Chooses the folds; the same table and seed give the same files.")
    ] = 0,
    folds: Annotated[int, typer.Option(min=3, max=50, help="Folds of the cross-validation.")] = 5,
    first_bucket: Annotated[
        int, typer.Option(min=1, help="Length of the first bucket; the others double it.", metavar="TOKENS")
    ] = 4096,
    answers_are_checked: Annotated[
        bool,
        typer.Option("--answers-are-checked", help="With decisions: all clients check their answers and ask again."),
    ] = False,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Write no pictures.")] = False,
) -> None:
    """Fit how likely each model is to answer correctly, by language and prompt length.

    The table has one row for each attempt, with the columns `model`, `language`, `bucket` (or `tokens`), `correct`,
    and optionally `task` and `ms`. Each task family becomes one `<task>.json` and one picture `<task>.png`.

    Example: `fairlead fit attempts.csv --out models/`
    """
    try:
        _fit(attempts, out, seed, folds, first_bucket, checked=answers_are_checked, plot=not no_plot)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] not in _FITTING_LIBRARIES:
            raise
        raise UserError(f"fitting needs {error.name}, which is not installed; {how_to_install('fit')}") from None


def _fit(source: str, out: Path, seed: int, folds: int, first_bucket_tokens: int, *, checked: bool, plot: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track

    from fairlead.tools.fit import fit_model, read_attempts, write_family

    if plot:
        from fairlead.tools.fit.plot import write_plot

    console = Console()
    attempts = read_attempts(Path(source), first_bucket_tokens, _known_of_decisions(source, checked, console))
    progress = track(attempts, "Fitting", console=console, transient=True, disable=not console.is_terminal)
    fitted = [fit_model(of_model, seed, folds) for of_model in progress]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for task, group in groupby(fitted, key=lambda model: model.task):
            family = list(group)
            files = [out / f"{task}.json"]
            write_family(files[0], family, seed, folds)
            if plot:
                files.append(out / f"{task}.png")
                write_plot(files[1], family)
            console.print(_table(task, family))
            for model in family:
                if model.rate_because is not None:
                    console.print(
                        f"{escape(model.model)}: one rate for all prompts, {model.rate_because}", highlight=False
                    )
            for file in files:
                console.print(f"wrote {file}", highlight=False, markup=False, soft_wrap=True)
    except OSError as error:
        raise UserError(f"{error.filename or out}: cannot be written: {error.strerror or error}") from None
    _print_suggestions(console, fitted)


def _known_of_decisions(source: str, checked: bool, console: Console) -> DataFrame | None:
    """The attempts of a decision log whose outcome is known; None if `source` is a table of attempts."""
    from fairlead.tools.decisions import is_decision_log, latest, read_decisions
    from fairlead.tools.fit.judged import COLUMNS, MOST_ROWS, judged

    if not is_decision_log(source):
        return None
    rows = read_decisions(source, COLUMNS, keep=latest(MOST_ROWS))
    if rows.height == MOST_ROWS:
        console.print(f"the log's latest {MOST_ROWS:,} decisions are used")
    known, unknown, inferred = judged(rows, checked=checked)
    if known.is_empty():
        raise UserError(
            f"{source}: none of its {unknown} answers is known to be right or wrong; this is known for clients "
            "that name their questions (docs/retries.md), and with --answers-are-checked if all clients ask again"
        )
    console.print(f"{known.height:,} attempts; {unknown:,} more are not known to be right or wrong")
    if inferred:
        console.print(f"{inferred:,} wrong answers are known by later attempts only: parts of this log are missing")
    return known


def _table(task: str, family: list[FittedModel]) -> Table:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{escape(task)}: on held-out attempts / by the overall rate alone", box=SIMPLE)
    table.add_column("model", overflow="fold")
    for heading in ("attempts", "right", "log loss", "Brier score", "calib.\nerror"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in family:
        quality = model.quality
        table.add_row(
            escape(model.model),
            f"{quality.rows:,}",
            f"{model.right.sum() / quality.rows:.1%}",
            f"{quality.log_loss:.3f} / {quality.base_log_loss:.3f}",
            f"{quality.brier:.3f} / {quality.base_brier:.3f}",
            f"{quality.calibration_error:.3f}",
        )
    return table


def _print_suggestions(console: Console, fitted: list[FittedModel]) -> None:
    speeds = {model.model: model.prefill_ms_per_token for model in fitted if model.prefill_ms_per_token is not None}
    if not speeds:
        return
    console.print("\nFrom the column ms (its median over prompt tokens), for fairlead.yaml:\npool:\n  models:")
    for name, ms_per_token in speeds.items():
        console.print(f"    {name}: {{prefill_ms_per_token: {ms_per_token:.4g}}}", markup=False, highlight=False)
