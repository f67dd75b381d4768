"""What studies and benchmarks have in common: a progress bar, and a folder of results that is never half written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fairlead.errors import UserError


def progress_bar(unit: str) -> Progress:
    """A bar on stderr that counts in `unit`. Two redraws a second: drawing must not take time from the measurement."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:,}}/{{task.total:,}} {unit}".rstrip()),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=2,
    )


@contextmanager
def results_in(out: Path) -> Iterator[Path]:
    """A temporary folder inside `out`, whose files replace those of `out` when the block ends without an error.

    Folders inside it are scratch and are removed. Raises UserError if the results cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as name:
            yield Path(name)
            for file in sorted(each for each in Path(name).iterdir() if each.is_file()):
                file.replace(out / file.name)
    except OSError as error:
        raise UserError(f"--out {error.filename or out}: cannot be written ({error.strerror})") from None
