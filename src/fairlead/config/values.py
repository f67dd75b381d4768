"""Kinds of values that several sections have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

Names = Annotated[tuple[str, ...], Field(strict=False)]  # YAML gives lists, a frozen configuration needs tuples
TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


def _absolute(value: str) -> str:
    if not Path(value).is_absolute():
        raise ValueError(f'"{value}" is not an absolute path; Envoy reads this file too, so write /etc/fairlead/...')
    return value


AbsolutePath = Annotated[str, AfterValidator(_absolute)]  # of a file that Envoy reads too
