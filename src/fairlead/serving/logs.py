"""Logs: one line an event on standard error, JSON unless a person is looking. Never used on the request path."""

from __future__ import annotations

import sys
from typing import Literal

import structlog


def set_up_logs(least: Literal["info", "warning"] = "info") -> None:
    """`least`: what is less severe is not shown."""
    rendering: list[structlog.typing.Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    if sys.stderr.isatty():
        # By default it shows the values of variables, too: prompts and keys.
        rendering = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
