"""Parquet files of a decision log: one for each batch of rows, written atomically, the oldest removed over a limit.

Several sidecars may write to one folder, or to one place in an object store. A file's name holds the time when it was
written, or just after the newest file's: names are in the order of writing even where the clock was set back.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl

from fairlead.decision_log.columns import COLUMNS
from fairlead.decision_log.location import ONE_TRY
from fairlead.decision_log.uploads import UnreadableError

PATTERN: Final = "decisions-*.parquet"
_TIME: Final = "%Y%m%dT%H%M%S.%f"
_NAME: Final = re.compile(r"decisions-(\d{8}T\d{6}\.\d{6})-[0-9a-f]{8}\.parquet")
_TYPES: Final[dict[str, Any]] = {
    "float64": pl.Float64(),
    "float32": pl.Float32(),
    "int32": pl.Int32(),
    "int16": pl.Int16(),
    "string": pl.String(),
    "boolean": pl.Boolean(),
    "strings": pl.List(pl.String()),
    "runs": pl.List(pl.List(pl.UInt32())),
}
SCHEMA: Final = {name: _TYPES[kind] for name, kind in COLUMNS.items()}


def write(folder: Path, rows: Sequence[tuple[Any, ...]]) -> int:
    """Write `rows` as one new file; its bytes. Raises OSError, and leaves nothing then."""
    folder.mkdir(parents=True, exist_ok=True)
    # Drawn, because processes in containers all have the same number.
    path = folder / f"decisions-{_following(folder)}-{secrets.token_hex(4)}.parquet"
    unfinished = path.with_name(f".{path.name}")
    # Column by column, so that the event loop runs in between.
    columns = [
        pl.Series(name, [row[place] for row in rows], dtype=kind, strict=False)
        for place, (name, kind) in enumerate(SCHEMA.items())
    ]
    try:
        pl.DataFrame(columns).write_parquet(unfinished)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return path.stat().st_size


def upload(file: Path, bucket: str) -> None:
    """Put `file` under the same name into `bucket`. Raises UnreadableError, or what polars raises of the store."""
    try:
        rows = pl.read_parquet(file)
    except pl.exceptions.PolarsError as error:
        raise UnreadableError(str(error)) from None
    # The same sources of credentials whether boto3 is installed or not.
    rows.write_parquet(f"{bucket}/{file.name}", storage_options=ONE_TRY, credential_provider=None)


def rotate(folder: Path, most_bytes: int) -> int:
    """Remove the oldest files until the rest have at most `most_bytes`; how many were removed.

    The newest always stays.
    """
    newest_first = sorted(folder.glob(PATTERN), key=lambda path: (_written(path), path.name), reverse=True)
    sizes = [_size(path) for path in newest_first]
    removed = 0
    total = 0
    for place, (path, size) in enumerate(zip(newest_first, sizes, strict=True)):
        total += size
        if place and total > most_bytes:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _following(folder: Path) -> str:
    """The time now, or a microsecond after that in the newest file's name: a clock that was set back would make the
    newest file the oldest, and the next to be removed.
    """
    now = datetime.now(UTC).strftime(_TIME)
    newest = max((name.group(1) for path in folder.glob(PATTERN) if (name := _NAME.fullmatch(path.name))), default="")
    if newest < now:
        return now
    return (datetime.strptime(newest, _TIME) + timedelta(microseconds=1)).strftime(_TIME)


def _written(path: Path) -> str:
    """When a file was written: by its name, or by its time of change if somebody else named it."""
    name = _NAME.fullmatch(path.name)
    if name is not None:
        return name.group(1)
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime(_TIME)
    except OSError:  # another sidecar removed it
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # another sidecar removed it
        return 0
