"""How files are replaced, and how a replaced one is noticed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

Stamp = tuple[int, ...]


def stamp_of(path: Path) -> Stamp | None:
    """What differs once the file has changed; None: it is gone, or just being replaced.

    Taken before the file is read: what changes meanwhile is then read again, and not missed.
    """
    try:
        stat = path.stat()
    except OSError:
        return None
    # Whose it is, and its mode: a file that could not be read is tried again once it can be.
    return stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_mode, stat.st_uid, stat.st_gid


def replace_file(path: Path, *parts: bytes) -> None:
    """Replace a file, by these parts of one, atomically: a sidecar may be reading it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
