"""`fairlead calibrate`: from measured times of real engines to parameters of simulated ones, with their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead calibrate perf_model.csv --out engines.json"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLE)(calibrate)


def calibrate(
    measurements: Annotated[
        Path,
        typer.Argument(
            help="Table (.csv or .jsonl, packed or not) with prompt_size, batch_size, token_size (tokens), "
            "prompt_time, token_time, e2e_time (ms), and if you like model, hardware, tensor_parallel.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The calibration file.", metavar="FILE")] = Path("engines.json"),
    source: Annotated[str, typer.Option(help="Where the measurements are from, for the file.")] = "",
) -> None:
    """Fit the engine model of `fairlead replay` to measured times, and tell how far off it is.

    A world file may then name an engine of the calibration file.
    """
    import msgspec
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from fairlead.errors import UserError
    from fairlead.files import replace_file
    from fairlead.replay.calibration import CalibrationFile, Error
    from fairlead.replay.calibration import calibrate as fitted
    from fairlead.replay.lines import lines_of

    engines = fitted(lines_of(measurements))
    if not engines:
        raise UserError(f"{measurements}: no measurement in it")
    table = Table(box=SIMPLE, title="Error of the simulated engine: median / nine in ten cases are nearer")
    table.add_column("engine", overflow="fold")
    costs, errors = ("ms a request", "ms a prompt token", "ms a step"), ("first token", "each token", "whole answer")
    for heading in (*costs, *errors):
        table.add_column(heading, justify="right")

    def text(error: Error) -> str:
        return f"{error.median:.0%} / {error.worst_tenth:.0%}"

    for name, engine in engines.items():
        step_ms = engine.step_overhead_ms + engine.decode_ms_per_step
        times = f"{engine.request_overhead_ms:.1f}", f"{engine.prefill_ms_per_token:.3f}", f"{step_ms:.1f}"
        table.add_row(name, *times, *map(text, (engine.first_token_error, engine.token_error, engine.total_error)))
    document = msgspec.json.format(msgspec.json.encode(CalibrationFile(source or measurements.name, engines)), indent=1)
    try:
        replace_file(out, document + b"\n")
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    console = Console()
    console.print(table)
    console.print(f"wrote {out}", markup=False, highlight=False)
