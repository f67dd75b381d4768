"""The `fairlead` command. A subcommand's module is imported when it is asked for; `serve` loads no tools."""

from __future__ import annotations

import errno
import importlib
import sys
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from fairlead import __version__
from fairlead.errors import UserError

# In the order in which a newcomer needs them; the modules under `tools` study, the others serve.
COMMANDS: Final = MappingProxyType(
    {
        "up": "fairlead.commands.up",
        "serve": "fairlead.commands.serve",
        "check": "fairlead.commands.check",
        "envoy": "fairlead.commands.envoy",
        "doctor": "fairlead.commands.doctor",
        "engine": "fairlead.tools.commands.engine",
        "demo": "fairlead.tools.commands.demo",
        "fit": "fairlead.tools.commands.fit",
        "migrate": "fairlead.commands.migrate",
        "plan": "fairlead.tools.commands.plan",
        "calibrate": "fairlead.tools.commands.calibrate",
        "replay": "fairlead.tools.commands.replay",
        "tune": "fairlead.tools.commands.tune",
        "bench": "fairlead.tools.commands.bench",
        "bench-routing": "fairlead.tools.commands.bench_routing",
        "bench-rivals": "fairlead.tools.commands.bench_rivals",
        "bench-reuse": "fairlead.tools.commands.bench_reuse",
        "bench-tracing": "fairlead.tools.commands.bench_tracing",
        "reuse": "fairlead.tools.commands.reuse",
    }
)


class _Commands(TyperGroup):
    """The commands by name, each loaded when it is run or when its help is shown."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - a context of the click that Typer carries
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        alone = _application(TyperGroup)
        importlib.import_module(module).register(alone)
        alone.callback()(_root)  # a Typer application of a single command without it would be that command
        group: Any = typer.main.get_command(alone)
        return group.commands[cmd_name]


def _application(group: type[TyperGroup]) -> typer.Typer:
    return typer.Typer(
        name="fairlead",
        cls=group,
        help="Send each LLM request to the endpoint with the least expected time to a correct answer.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )


def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    if version:
        typer.echo(f"fairlead {__version__}")
        raise typer.Exit


app = _application(_Commands)
app.callback(invoke_without_command=True)(_root)


def main() -> None:
    try:
        app()
    except UserError as error:
        typer.echo(f"fairlead: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        typer.echo(f"fairlead: {error.filename or 'output'}: cannot be written ({error.strerror})", err=True)
        sys.exit(1)
