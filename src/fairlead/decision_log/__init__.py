"""The decision log: what was decided and how it ended, as Parquet files without prompt text.

`log` is fed by the request path and writes in the background, `columns` makes its rows, `files` are what tools read
again (`tools.decisions`), `uploads` brings them to an object store. Needs `fairlead[decisions]`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.config import Decisions
from fairlead.decision_log.log import DecisionLog, NoLog
from fairlead.decision_log.uploads import Uploads
from fairlead.errors import UserError, how_to_install

__all__ = ["DecisionLog", "NoLog", "open_log"]


def open_log(config: Decisions | None, folder: Path, models: Callable[[], Collection[str]]) -> DecisionLog | NoLog:
    """The log of `config`, whose path is relative to `folder`. Raises UserError if it cannot be written."""
    if config is None:
        return NoLog()
    require_library()
    from fairlead.decision_log import files

    key, path = files_of(config, folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{key}: {path} cannot be written ({error.strerror})") from None
    uploads = Uploads(path, files.PATTERN, partial(files.upload, bucket=config.path)) if config.in_bucket else None

    def write(rows: Sequence[tuple[Any, ...]]) -> None:
        files.write(path, rows)
        removed = files.rotate(path, config.rotate_mb << 20)
        if uploads is not None:
            uploads.counts["lost"] += removed

    return DecisionLog(write, sample=config.sample, models=models, uploads=uploads)


def files_of(config: Decisions, folder: Path) -> tuple[str, Path]:
    """The folder that files are first written to, and the key that names it."""
    if config.in_bucket:
        return "decisions.spool", folder / config.spool
    return "decisions.path", folder / config.path


def require_library() -> None:
    """Raises UserError where the library that writes the files is not installed."""
    try:
        import polars  # noqa: F401
    except ModuleNotFoundError:
        message = f"needs polars, which is not installed; {how_to_install('decisions')}"
        raise UserError(f"decisions: {message}") from None
