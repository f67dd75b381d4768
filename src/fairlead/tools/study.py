"""What studies and benchmarks have in common: a progress bar, processes that end with what they work for, and a folder
of results that is never half written.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fairlead.errors import UserError

LINE_EVERY_S: Final = 30.0


class _Shown(Progress):
    """Where nothing can be redrawn, as in a log, a line now and then."""

    _told_s = -inf

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        if not self.console.is_terminal and monotonic() - self._told_s >= LINE_EVERY_S:
            self._told_s = monotonic()
            (task,) = [each for each in self.tasks if each.id == task_id]
            done = [each(task) for each in self.columns if isinstance(each, TextColumn)]
            times = "after", TimeElapsedColumn()(task), "and", TimeRemainingColumn()(task), "to go"
            self.console.print(*done, *times, soft_wrap=True)


def progress_bar(unit: str) -> Progress:
    """A bar on stderr that counts in `unit`. Two redraws a second: drawing must not take time from the measurement."""
    return _Shown(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:,}}/{{task.total:,}} {unit}".rstrip()),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=2,
    )


@contextmanager
def worker_processes(
    jobs: int, initializer: Callable[..., None] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that whatever the block raises, Ctrl-C too, ends in the middle of their work.

    By itself a pool lets each process finish what it has begun, and what is queued for it.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy locks held by the progress display's threads
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, context, initializer, initargs) as pool:
        try:
            yield pool
        except BaseException:
            for own in set(multiprocessing.active_children()) - others:
                own.terminate()
            raise


def check_writable(out: Path) -> None:
    """Raises UserError where results could not be written: now, and not after minutes of measuring. Leaves nothing."""
    missing = [each for each in (out, *out.parents) if not each.exists()]
    with results_in(out):
        pass
    for each in missing:
        each.rmdir()


@contextmanager
def results_in(out: Path) -> Iterator[Path]:
    """A temporary folder inside `out`, whose files replace those of `out` when the block ends without an error.

    Folders inside it are scratch and are removed. Raises UserError if the results cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as name:
            yield Path(name)
            for file in sorted(each for each in Path(name).iterdir() if each.is_file()):
                file.replace(out / file.name)
    except OSError as error:
        raise UserError(f"--out {error.filename or out}: cannot be written ({error.strerror})") from None
