"""The `fairlead` command. Each subcommand lives in `fairlead.commands`; this module only gathers them."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from fairlead import __version__
from fairlead.errors import UserError

COMMANDS = (
    "up",
    "serve",
    "check",
    "envoy",
    "engine",
    "demo",
    "fit",
    "migrate",
    "plan",
    "calibrate",
    "replay",
    "tune",
    "bench",
    "bench_routing",
    "bench_reuse",
    "reuse",
)

app = typer.Typer(
    name="fairlead",
    help="Send each LLM request to the endpoint with the least expected time to a correct answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    if version:
        typer.echo(f"fairlead {__version__}")
        raise typer.Exit


def main() -> None:
    for name in COMMANDS:
        importlib.import_module(f"fairlead.commands.{name}").register(app)
    try:
        app()
    except UserError as error:
        typer.echo(f"fairlead: {error}", err=True)
        sys.exit(2)
