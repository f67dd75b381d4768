"""The decision log: what was decided and how it ended, as Parquet files without prompt text.

`log` is fed by the request path and writes in the background, `columns` makes its rows, `files` are what tools read
again (`tools.decisions`). Needs `fairlead[decisions]`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from fairlead.config import Decisions
from fairlead.decision_log.log import DecisionLog, NoLog
from fairlead.errors import UserError, how_to_install

__all__ = ["DecisionLog", "NoLog", "open_log"]


def open_log(config: Decisions | None, folder: Path, models: Callable[[], Collection[str]]) -> DecisionLog | NoLog:
    """The log of `config`, whose path is relative to `folder`. Raises UserError if it cannot be written."""
    if config is None:
        return NoLog()
    path = folder / config.path
    require_library()
    from fairlead.decision_log import files

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"decisions.path: {path} cannot be written ({error.strerror})") from None

    def write(rows: Sequence[tuple[Any, ...]]) -> None:
        files.write(path, rows)
        files.rotate(path, config.rotate_mb << 20)

    return DecisionLog(write, sample=config.sample, models=models)


def require_library() -> None:
    """Raises UserError where the library that writes the files is not installed."""
    try:
        import polars  # noqa: F401
    except ModuleNotFoundError:
        message = f"needs polars, which is not installed; {how_to_install('decisions')}"
        raise UserError(f"decisions: {message}") from None
