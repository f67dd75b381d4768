"""Traces: what became of a request as OpenTelemetry spans, made after its end from times that are known anyway.

`tracer` is fed by the request path and sends in the background, `spans` makes the spans, `context` reads what the
request said of its trace. Needs `fairlead[tracing]`.
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead.config import Tracing
from fairlead.errors import UserError, how_to_install
from fairlead.tracing.tracer import NoTracer, Tracer

__all__ = ["NoTracer", "Tracer", "open_tracer"]


def open_tracer(config: Tracing | None, clock_s: Callable[[], float]) -> Tracer | NoTracer:
    """The tracer of `config`. Raises UserError where the messages' library is not installed."""
    if config is None:
        return NoTracer()
    require_library()
    return Tracer(f"{config.endpoint.rstrip('/')}/v1/traces", sample=config.sample, clock_s=clock_s)


def require_library() -> None:
    """Raises UserError where the messages' library is not installed."""
    try:
        import opentelemetry.proto.trace.v1.trace_pb2  # noqa: F401
    except ModuleNotFoundError:
        message = f"needs opentelemetry-proto, which is not installed; {how_to_install('tracing')}"
        raise UserError(f"tracing: {message}") from None
