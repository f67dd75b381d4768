"""The two files of a benchmark: what people read, and what programs do."""

from __future__ import annotations

from pathlib import Path

import msgspec


def write_result(folder: Path, name: str, markdown: str, document: object) -> None:
    """NAME.md with `markdown`, and NAME.json with `document`, in `folder`, which is made. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(markdown, encoding="utf-8")
    (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
