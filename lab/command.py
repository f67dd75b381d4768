"""What the lab's commands share: how they are asked, how they end, and where their results go.

Ctrl-C ends a command quietly. What its user can mend ends it with 2, a server that failed with 1; both in one sentence.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.demo.children import ChildError
from fairlead.errors import UserError
from fairlead.files import replace_file


def parser(name: str, about: str, example: str) -> argparse.ArgumentParser:
    """Of `python -m NAME`; `example` is a way to go on after the name."""
    return argparse.ArgumentParser(
        prog=f"python -m {name}", description=about, epilog=f"Example: python -m {name} {example}"
    )


def add_measurement(to: argparse.ArgumentParser, out: str) -> None:
    """The options of every measurement: `--seed`, and `--out`, a folder which is `out` by default."""
    to.add_argument("--seed", type=int, default=0, metavar="N", help="another seed makes other requests")
    to.add_argument("--out", type=Path, default=Path(out), metavar="FOLDER", help=f"of the results; else {out}")


def at_least_one(text: str) -> int:
    """The type of an option that counts. Raises what argparse shows as a sentence."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return int(text)


@contextmanager
def ending() -> Iterator[None]:
    """Around all that a command does once it knows what was asked."""
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
    """`out`, there and open to us before anything is measured. Raises UserError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(out, error.strerror) from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise _not_writable(out, "Permission denied")
    return out


def show(report: str, path: Path) -> None:
    """Print a report and keep it at `path`. Raises UserError where it cannot be kept, and has printed it then."""
    print(report)
    try:
        replace_file(path, report.encode())
    except OSError as error:
        raise _not_writable(path.parent, error.strerror) from None


def _not_writable(out: Path, reason: str | None) -> UserError:
    return UserError(f"--out {out}: cannot be written ({reason}); name another folder")
