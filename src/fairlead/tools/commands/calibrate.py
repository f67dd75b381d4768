"""`fairlead calibrate`: fit simulated engines to measured times of real ones, and show the errors.

A table of measurements gives a calibration file; a decision log gives a world file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from rich.table import Table

_EXAMPLE = (
    "Examples: fairlead calibrate perf_model.csv --out engines.json | fairlead calibrate decisions/ --out world.yaml"
)
_SEEN: Final = ("round trip, ms", "ms a request", "ms a prompt token", "ms a step", "answers", "error")


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLE)(calibrate)


def calibrate(
    measurements: Annotated[
        str,
        typer.Argument(
            help="Table (.csv or .jsonl, compressed or not) with prompt_size, batch_size, token_size (tokens), "
            "prompt_time, token_time, e2e_time (ms), and optionally model, hardware, tensor_parallel. Or a folder or "
            "s3:// place of decisions.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The calibration file to write, or the world file for decisions.",
            metavar="FILE",
            show_default="engines.json or world.yaml",
        ),
    ] = None,
    source: Annotated[str, typer.Option(help="Where the measurements come from, to note in the file.")] = "",
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With decisions: tokens that fit an engine's KV cache; engines report it.",
            show_default="500000",
        ),
    ] = None,
) -> None:
    """Fit the engine model of `fairlead replay` to measured times, and show its error.

    A world file may then name an engine of the calibration file. From a folder of decisions it makes the world file
    itself: the engines that served, with their speeds and round trips.
    """
    from rich.console import Console

    from fairlead.errors import UserError, how_to_install

    try:
        from fairlead.files import replace_file
        from fairlead.tools.decisions import is_decision_log
    except ModuleNotFoundError as error:
        raise UserError(f"calibrating needs {error.name}, which is not installed; {how_to_install('replay')}") from None
    if of_decisions := is_decision_log(measurements):
        table, document = _world(measurements, source, kv_tokens)
    elif kv_tokens is not None:
        raise UserError("--kv-tokens is for a folder of decisions; tables of times do not cover caches")
    else:
        table, document = _engines(Path(measurements), source)
    out = out or Path("world.yaml" if of_decisions else "engines.json")
    try:
        replace_file(out, document)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    console = Console()
    console.print(table)
    console.print(f"wrote {out}", markup=False, highlight=False)


def _engines(measurements: Path, source: str) -> tuple[Table, bytes]:
    """The table to print, and the calibration file."""
    import msgspec
    from rich.box import SIMPLE
    from rich.table import Table

    from fairlead.errors import UserError
    from fairlead.tools.replay.calibration import CalibrationFile, Error, calibrate
    from fairlead.tools.replay.lines import lines_of

    engines = calibrate(lines_of(measurements))
    if not engines:
        raise UserError(f"{measurements}: no measurements in it")
    table = Table(box=SIMPLE, title="Error of the simulated engine: median / 90th percentile")
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
    return table, document + b"\n"


def _world(decisions: str, source: str, kv_tokens: int | None) -> tuple[Table, bytes]:
    """The table to print, and the world file."""
    from rich.box import SIMPLE
    from rich.table import Table

    from fairlead.tools.decisions import latest_of_each, read_decisions
    from fairlead.tools.replay.observed import COLUMNS, MOST_ANSWERS, observed, world_yaml
    from fairlead.tools.replay.world import DEFAULT_KV_TOKENS

    rows = read_decisions(decisions, COLUMNS, keep=latest_of_each("endpoint", MOST_ANSWERS))
    found = observed(rows, decisions)
    table = Table(box=SIMPLE, title="Engines, as fitted to their answers; median error of the time per token")
    for heading in ("engine", "model"):
        table.add_column(heading, overflow="fold")
    for heading in _SEEN:
        table.add_column(heading, justify="right")
    for engine in found.engines:
        parameters = engine.parameters
        numbers = (
            f"{engine.rtt_ms:.1f}",
            f"{parameters.request_overhead_ms:.1f}",
            f"{parameters.prefill_ms_per_token:.4g}",
            f"{parameters.decoding_step_ms(1):.1f}",
            f"{engine.answers:,}",
            f"{engine.error:.0%}",
        )
        table.add_row(engine.address, engine.model, *numbers)
    comments = [f"fairlead calibrate {source or decisions}"]
    if kv_tokens is None:
        comments.append("kv_tokens is a guess: engines report how many tokens fit their KV caches")
    return table, world_yaml(found, kv_tokens or DEFAULT_KV_TOKENS, comments).encode()
