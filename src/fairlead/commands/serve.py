"""`fairlead serve`: the sidecar alone, for an Envoy that runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead serve --config fairlead.yaml"


def register(app: typer.Typer) -> None:
    app.command("serve", epilog=_EXAMPLE)(serve)


def serve(
    config: Annotated[Path, typer.Option(help="The configuration.", metavar="FILE")] = Path("fairlead.yaml"),
) -> None:
    """Run the sidecar. SIGHUP or a changed file reloads the configuration, SIGTERM drains and ends."""
    from fairlead.extproc.grpc_core import prefer_old_listener

    prefer_old_listener()

    import uvloop

    from fairlead.serving.logs import set_up_logs
    from fairlead.serving.memory import keep_freed_memory
    from fairlead.serving.run import run

    keep_freed_memory()
    set_up_logs()
    uvloop.run(run(config))
