"""Errors of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.errors import UserError


class ConfigError(UserError):
    """The configuration cannot be used; each line of the message is `file:line: key.path: what to change`."""


KeyPath = tuple[str | int, ...]


def dotted(path: KeyPath) -> str:
    """`("pool", "endpoints", 3, "address")` as `pool.endpoints[3].address`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def line_of(path: str, lines: Mapping[str, int]) -> int:
    """The line of a dotted path, or of the nearest key above it that is written."""
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path, 1)


class InvalidAtError(ValueError):
    """A wrong value at `path` below the model whose validator raises this."""

    def __init__(self, path: KeyPath, message: str) -> None:
        super().__init__(message)
        self.path = path


class InvalidInPlacesError(ValueError):
    """Several values that are wrong, so that a validator need not stop at the first."""

    def __init__(self, places: Iterable[InvalidAtError]) -> None:
        self.places = tuple(places)
        super().__init__("; ".join(str(place) for place in self.places))
