"""Logs: one line an event on standard error, JSON unless a person is looking. Never used on the request path."""

from __future__ import annotations

import sys
from typing import Literal

import structlog


def set_up_logs(least: Literal["info", "warning"] = "info") -> None:
    """`least`: what is less severe is not shown."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
