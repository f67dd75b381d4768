"""`fairlead calibrate`: from measured times of real engines to simulated ones, with their errors.

Measured on purpose they are a table, and give a calibration file; seen while they served they are a decision log, and
give a world.
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
        Path,
        typer.Argument(
            help="Table (.csv or .jsonl, packed or not) with prompt_size, batch_size, token_size (tokens), "
            "prompt_time, token_time, e2e_time (ms), and if you like model, hardware, tensor_parallel. Or a folder of "
            "decisions.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The calibration file, or of decisions the world file.",
            metavar="FILE",
            show_default="engines.json or world.yaml",
        ),
    ] = None,
    source: Annotated[str, typer.Option(help="Where the measurements are from, for the file.")] = "",
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="With decisions: tokens that an engine's KV cache holds; engines tell.", show_default="500000"
        ),
    ] = None,
) -> None:
    """Fit the engine model of `fairlead replay` to measured times, and tell how far off it is.

    A world file may then name an engine of the calibration file. Of a folder of decisions it makes the world file
    itself: the engines that served, as fast and as far away as they were.
    """
    from rich.console import Console

    from fairlead.errors import UserError

    try:
        from fairlead.decision_log.reader import is_decision_log
        from fairlead.files import replace_file
    except ModuleNotFoundError as error:
        raise UserError(
            f"calibrating needs {error.name}, which is not installed; run: pip install 'fairlead[replay]'"
        ) from None
    if of_decisions := is_decision_log(measurements):
        table, document = _world(measurements, source, kv_tokens)
    elif kv_tokens is not None:
        raise UserError("--kv-tokens is for a folder of decisions; tables of times say nothing of caches")
    else:
        table, document = _engines(measurements, source)
    out = out or Path("world.yaml" if of_decisions else "engines.json")
    try:
        replace_file(out, document)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    console = Console()
    console.print(table)
    console.print(f"wrote {out}", markup=False, highlight=False)


def _engines(measurements: Path, source: str) -> tuple[Table, bytes]:
    """What is shown, and a calibration file."""
    import msgspec
    from rich.box import SIMPLE
    from rich.table import Table

    from fairlead.errors import UserError
    from fairlead.replay.calibration import CalibrationFile, Error, calibrate
    from fairlead.replay.lines import lines_of

    engines = calibrate(lines_of(measurements))
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
    return table, document + b"\n"


def _world(decisions: Path, source: str, kv_tokens: int | None) -> tuple[Table, bytes]:
    """What is shown, and a world file."""
    from rich.box import SIMPLE
    from rich.table import Table

    from fairlead.decision_log.reader import read_decisions
    from fairlead.replay.observed import observed, world_yaml
    from fairlead.replay.world import DEFAULT_KV_TOKENS

    found = observed(read_decisions(decisions), decisions)
    table = Table(box=SIMPLE, title="Engines as their answers show them; error of a token's time, median")
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
        comments.append("kv_tokens is a guess: engines tell how many tokens their KV caches hold")
    return table, world_yaml(found, kv_tokens or DEFAULT_KV_TOKENS, comments).encode()
