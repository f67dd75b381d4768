"""Kinds of values that several sections have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Names = Annotated[tuple[str, ...], Field(strict=False)]  # YAML gives lists, a frozen configuration needs tuples
TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
