"""Each rival in an environment of its own outside the repository: a virtual environment, or a folder of Go binaries.

They lie under `$XDG_CACHE_HOME/fairlead/rivals/NAME-VERSION` (`~/.cache` where that is unset) and are made once. A
folder without its mark is left from an attempt that was cut short, and is made again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairlead.tools.bench.rivals.pins import Pin

_MARK: Final = ".installed"
_AT_MOST_S: Final = 1800.0  # Kubernetes' client libraries take ten minutes to compile on two busy cores
_REASON_CHARACTERS: Final = 300


class UnavailableError(Exception):
    """A rival cannot be measured here; the text says why."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fairlead" / "rivals"


def installed(pin: Pin) -> Path:
    """The folder whose `bin` holds the rival's commands. Raises UnavailableError when it cannot be made."""
    folder = cache_folder() / f"{pin.name}-{pin.version}"
    if (folder / _MARK).exists():
        return folder
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if pin.language == "python":
            _python(pin, folder)
        else:
            _go(pin, folder)
        (folder / _MARK).touch()
    except OSError as error:
        raise UnavailableError(f"{folder} cannot be written ({error.strerror})") from None
    return folder


def _python(pin: Pin, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)], "no virtual environment")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, f"{pin.source}=={pin.version}"], f"pip cannot install {pin.source}=={pin.version}")


def _go(pin: Pin, folder: Path) -> None:
    if shutil.which("go") is None:
        raise UnavailableError("it is written in Go, and there is no `go` here; install Go and run this again")
    nice = ["nice", "-n", "19"] if shutil.which("nice") else []
    module = pin.source.partition("/cmd/")[0]
    wrapper = folder / "build"  # `go install` would also ask for the list of versions, which not every proxy gives
    wrapper.mkdir()
    failure = f"go cannot build {pin.source}@v{pin.version}"
    _run(["go", "mod", "init", "rival"], failure, wrapper)
    _run(["go", "mod", "edit", f"-require={module}@v{pin.version}"], failure, wrapper)
    _run([*nice, "go", "build", "-mod=mod", "-o", f"{folder / 'bin'}/", pin.source], failure, wrapper)


def _run(command: Sequence[str], failure: str, folder: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_AT_MOST_S)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{failure} within {_AT_MOST_S / 60:g} minutes") from None
    if done.returncode:
        raise UnavailableError(f"{failure}: {_last_words(done.stderr or done.stdout)}")


def _last_words(log: str) -> str:
    """The end of what a tool wrote, in one line: pip and go give their reasons last."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    return " ".join(lines[-2:])[-_REASON_CHARACTERS:] or "it said nothing"
