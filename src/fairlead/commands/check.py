"""`fairlead check`: is this configuration one that `serve` would take, and what does a key of it mean?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead check --config fairlead.yaml"


def register(app: typer.Typer) -> None:
    app.command("check", epilog=_EXAMPLE)(check)


def check(
    config: Annotated[Path, typer.Option(help="The configuration.", metavar="FILE")] = Path("fairlead.yaml"),
    explain: Annotated[
        str | None, typer.Option(help="Say what a key means instead: observe.stale_ms", metavar="KEY")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema for editors instead.")] = False,
) -> None:
    """Validate a configuration with the files it names, and show what it would serve."""
    if explain is not None or schema:
        _print_meaning(explain)
        return
    from fairlead.config import load
    from fairlead.serving.preflight import preflight

    loaded = load(config)
    pool = preflight(loaded, config.parent)
    models = ", ".join(pool.models)
    routes = ", ".join(pool.routes) or "none"
    typer.echo(
        f"{config}: {len(pool.endpoints)} endpoints of {len(pool.models)} models ({models}); routes: {routes}; "
        f"policy {loaded.policy.name}"
    )


def _print_meaning(key: str | None) -> None:
    """Of one key, or of all as a JSON Schema."""
    import json

    from fairlead.config.schema import explained, json_schema

    typer.echo(json.dumps(json_schema(), indent=2) if key is None else explained(key))
