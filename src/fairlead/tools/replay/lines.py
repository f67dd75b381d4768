"""Lines of a trace file with their numbers, and the errors that name them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from fairlead.errors import UserError

MOST_TOKENS: Final = 1 << 24  # more is a typing error, not a prompt


class Line:
    """One record of a trace, and its location."""

    __slots__ = ("_where", "values")

    def __init__(self, path: Path, number: int, values: Mapping[str, Any]) -> None:
        self._where = f"{path}:{number}"
        self.values = values

    def refuse(self, why: str) -> NoReturn:
        raise UserError(f"{self._where}: {why}")

    def number(self, name: str, least: float = 0.0) -> float:
        """A finite number of at least `least`."""
        value = self.values.get(name)
        if isinstance(value, str):  # from a CSV file
            try:
                value = float(value)
            except ValueError:
                self.refuse(f'{name}: "{value}" is not a number')
        if value is None:
            self.refuse(f"{name} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(f"{name}: {json.dumps(value)} is not a number")
        if not least <= value < float("inf"):
            self.refuse(f"{name} is {value:g}; it must be at least {least:g}")
        return float(value)

    def tokens(self, name: str) -> int:
        """A whole number of tokens, at least 1."""
        value = self.number(name, least=1)
        if value != int(value) or value > MOST_TOKENS:
            self.refuse(f"{name} is {value:g}; write a whole number of tokens, at most {MOST_TOKENS}")
        return int(value)

    def text(self, name: str) -> str | None:
        """None where it is absent or empty."""
        value = self.values.get(name)
        if value in (None, ""):
            return None
        if not isinstance(value, str | int):
            self.refuse(f"{name}: {json.dumps(value)} is not a text")
        return str(value)


def lines_of(path: Path) -> Iterator[Line]:
    """Records of a .jsonl or .csv file, compressed with gzip or not. Raises UserError for other files."""
    name = path.name.removesuffix(".gz")
    if not name.endswith((".jsonl", ".csv")):
        raise UserError(f"{path}: not a trace; give a .jsonl or .csv file, with .gz after it if it is compressed")
    with _opened(path) as file:
        if name.endswith(".csv"):
            yield from _csv_lines(path, file)
        else:
            yield from _json_lines(path, file)


@contextmanager
def _opened(path: Path) -> Iterator[io.TextIOBase]:
    try:
        with (
            gzip.open(path) if path.suffix == ".gz" else path.open("rb") as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file,  # spreadsheets write a mark
        ):
            yield file
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (EOFError, zlib.error):
        raise UserError(f"{path}: the compressed file is damaged; copy it again") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None


def _json_lines(path: Path, file: io.TextIOBase) -> Iterator[Line]:
    for number, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not JSON ({error})") from None
        if not isinstance(values, dict):
            raise UserError(f"{path}:{number}: not a JSON object")
        yield Line(path, number, values)


def _csv_lines(path: Path, file: io.TextIOBase) -> Iterator[Line]:
    reader = csv.DictReader(file, strict=True, skipinitialspace=True)
    try:
        for values in reader:
            if None in values or None in values.values():
                raise UserError(f"{path}:{reader.line_num}: not as many fields as the first line has")
            yield Line(path, reader.line_num, values)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from None
