"""The decision log: what was decided and how it ended, as Parquet files without prompt text; written, and read again.

`log` is fed by the request path and writes beside it, `columns` makes its rows; `reader` is for `replay`, `tune` and
`fit`. Needs `fairlead[decisions]`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from fairlead.config import Decisions
from fairlead.decision_log.log import DecisionLog
from fairlead.errors import UserError

__all__ = ["DecisionLog", "open_log"]


def open_log(config: Decisions, folder: Path, models: Callable[[], Collection[str]]) -> DecisionLog:
    """The log of `config`, whose path is relative to `folder`. Raises UserError where it cannot be written."""
    path = folder / config.path
    try:
        from fairlead.decision_log import files

        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"decisions.path: {path} cannot be written ({error.strerror})") from None
    except ModuleNotFoundError as error:
        raise UserError(
            f"decisions needs {error.name}, which is not installed; run: pip install 'fairlead[decisions]'"
        ) from None

    def write(rows: Sequence[tuple[Any, ...]]) -> None:
        files.write(path, rows)
        files.rotate(path, config.rotate_mb << 20)

    return DecisionLog(write, sample=config.sample, models=models)
