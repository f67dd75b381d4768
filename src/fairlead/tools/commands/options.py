"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

World = Annotated[
    str | None,
    typer.Option(
        help="A file, YAML: engines, regions, models; or the name of a world, see docs/replay.md.",
        metavar="FILE|NAME",
        show_default="plain, 8 engines",
    ),
]
CapTokens = Annotated[int, typer.Option(min=1, help="Cut agent sessions before their first prompt longer than this.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one a core")]
