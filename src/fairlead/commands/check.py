"""`fairlead check`: is this configuration one that `serve` would take?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead check --config fairlead.yaml"


def register(app: typer.Typer) -> None:
    app.command("check", epilog=_EXAMPLE)(check)


def check(
    config: Annotated[Path, typer.Option(help="The configuration.", metavar="FILE")] = Path("fairlead.yaml"),
) -> None:
    """Validate a configuration with the files it names, and say what it would serve."""
    from fairlead.cascade.serving.judges import load_functions
    from fairlead.config import load
    from fairlead.pool_setup import make_pool

    loaded = load(config)
    pool = make_pool(loaded, config.parent)
    load_functions(loaded.cascades(), config.parent)
    models = ", ".join(pool.models)
    routes = ", ".join(pool.routes) or "none"
    typer.echo(
        f"{config}: {len(pool.endpoints)} endpoints of {len(pool.models)} models ({models}); routes: {routes}; "
        f"policy {loaded.policy.name}"
    )
