"""`fairlead envoy`: write a complete Envoy bootstrap for a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

_EXAMPLE = "Example: fairlead envoy --config fairlead.yaml --output envoy.yaml --validate"


def register(app: typer.Typer) -> None:
    app.command("envoy", epilog=_EXAMPLE)(envoy)


def envoy(
    config: Annotated[Path, typer.Option(help="The configuration of `fairlead serve`.", metavar="FILE")] = Path(
        "fairlead.yaml"
    ),
    output: Annotated[str, typer.Option(help="Where to write; - is standard output.", metavar="FILE")] = "-",
    mode: Annotated[
        Literal["buffered", "full_duplex"], typer.Option(help="How the sidecar gets the bodies of requests.")
    ] = "buffered",
    admin: Annotated[
        str, typer.Option(help="Envoy's admin page; whoever reaches it can stop Envoy.", metavar="IP:PORT")
    ] = "127.0.0.1:9901",
    validate: Annotated[
        bool, typer.Option("--validate", help="Let the installed Envoy check the bootstrap before it is written.")
    ] = False,
) -> None:
    """Write the Envoy in front of the pool: listener, retries, health checks, and the call to the sidecar."""
    from fairlead import gateway
    from fairlead.config import load
    from fairlead.config.agreement import listens_apart
    from fairlead.errors import UserError
    from fairlead.gateway import remembered

    loaded = load(config)
    gateway.listen_on("--admin", admin)
    listens_apart("--admin", admin, loaded)
    if Path(output).exists() and Path(output).samefile(config):  # also by a link
        raise UserError(f"--output {output}: is the configuration itself; name another file, such as envoy.yaml")
    try:
        tree = gateway.bootstrap(loaded, admin_address=admin, mode=mode)
    except UserError as error:
        raise loaded.located(error) from None
    try:
        remembered.prepare(loaded)
    except OSError as error:
        where = f"gateway.remember: {loaded.gateway.remember} cannot be written here ({error.strerror})"
        typer.echo(f"{where}; where Envoy runs, run this command or the sidecar before it", err=True)
    if validate:
        gateway.validate(tree)
    command = f"fairlead envoy --config {config.name}" + ("" if mode == "buffered" else f" --mode {mode}")
    text = gateway.render(tree, comment=gateway.comment(command, mode))
    if output == "-":
        typer.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output {output}: cannot be written ({error.strerror}); pass the path of a file") from None
