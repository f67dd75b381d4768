"""Logs: one line an event on standard error, JSON unless a person is looking. Never used on the request path."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Literal

import structlog


class _Lossy:
    """Standard error. What cannot be written, on a full disk or to a reader that has gone, is lost: no task ends for
    it, and no drain."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def set_up_logs(least: Literal["info", "warning"] = "info") -> None:
    """`least`: what is less severe is not shown."""
    rendering: list[structlog.typing.Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    if sys.stderr.isatty():
        # By default it shows the values of variables, too: prompts and keys.
        rendering = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    lossy: Any = _Lossy()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(lossy),
        cache_logger_on_first_use=True,
    )
