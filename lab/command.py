"""What the lab's commands share: their options, how they end, and where their results go.

Ctrl-C ends a command quietly. A mistake that the user can fix exits with 2, a failed server with 1; both print one
sentence.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.errors import UserError
from fairlead.files import replace_file
from fairlead.processes import ChildError


def parser(name: str, about: str, example: str) -> argparse.ArgumentParser:
    """The parser of `python -m NAME`; `example` shows arguments."""
    return argparse.ArgumentParser(
        prog=f"python -m {name}", description=about, epilog=f"Example: python -m {name} {example}"
    )


def add_measurement(to: argparse.ArgumentParser, out: str) -> None:
    """The options of every measurement: `--seed`, and `--out`, a folder which is `out` by default."""
    to.add_argument("--seed", type=int, default=0, metavar="N", help="another seed makes other requests")
    to.add_argument(
        "--out", type=Path, default=Path(out), metavar="FOLDER", help=f"folder of the results; default {out}"
    )


def at_least_one(text: str) -> int:
    """The type of a counting option. Raises an error that argparse shows as a sentence."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return int(text)


@contextmanager
def ending() -> Iterator[None]:
    """Wraps all that a command does after parsing its options."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except ChildError as error:
        sys.exit(f"error: {error}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def results_folder(out: Path) -> Path:
    """Create `out` and check that it is writable before anything is measured. Raises UserError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(out, error.strerror) from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise _not_writable(out, "Permission denied")
    return out


def show(report: str, path: Path) -> None:
    """Print a report and write it to `path`. Raises UserError if it cannot be written, after printing it."""
    print(report)
    try:
        replace_file(path, report.encode())
    except OSError as error:
        raise _not_writable(path.parent, error.strerror) from None


def _not_writable(out: Path, reason: str | None) -> UserError:
    return UserError(f"--out {out}: cannot be written ({reason}); name another folder")
