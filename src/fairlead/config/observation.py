"""The sections on what is watched and written down: `observe`, `decisions` and `tracing`."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, PlainSerializer, PositiveInt, model_validator

from fairlead.addresses import without_password
from fairlead.config.errors import InvalidAtError
from fairlead.section import Section

_Interval = Annotated[int, Field(ge=10)]  # milliseconds
_ReportInterval = Annotated[int, Field(ge=10, le=60_000)]  # FairleadEngineUnwatched looks at five minutes


class Observe(Section):
    """How the sidecar watches its engines, off the request path. Intervals are jittered by a fifth."""

    interval_ms: _ReportInterval = 250  # between reads of /metrics; and of /health while an engine's health is in doubt
    health_interval_ms: _Interval = 1000
    rtt_interval_ms: _Interval = 5000  # between measurements of the round trip
    rtt_alpha: Annotated[float, Field(gt=0, le=1)] = 0.3  # weight of the newest round trip in the smoothed one
    timeout_ms: PositiveInt = 2000  # for each of these requests
    failures_to_eject: PositiveInt = 3  # in a row: refused, no answer in time, or a 5xx
    answers_per_second: Annotated[float, Field(ge=0)] = 20.0  # observed in full, to learn constants; 0: none
    messages_per_second: Annotated[float, Field(ge=0)] = 500.0  # that these may have: each part of a stream is one
    state: Annotated[str, Field(min_length=1)] | None = None  # a file that keeps what was learned over restarts
    stale_ms: PositiveInt = 3000  # after this, numbers that could not be read or do not move are not believed

    @model_validator(mode="after")
    def _reports_are_renewed_before_they_are_stale(self) -> Self:
        if self.stale_ms < self.interval_ms:
            written = "stale_ms" if "stale_ms" in self.model_fields_set else "interval_ms"  # the other may be a default
            message = (
                f"numbers are read every {self.interval_ms} ms and are stale after {self.stale_ms} ms; write "
                f"a stale_ms of {self.interval_ms} or more, best several intervals, or a shorter interval_ms"
            )
            raise InvalidAtError((written,), message)
        return self


def _folder_or_bucket(value: str) -> str:
    """Raises ValueError, without the value, for a URL that decisions cannot be written to: it may hold a password."""
    if "://" in value and not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s*?\[\]#@:]*)?", value):
        raise ValueError(
            "is neither a folder nor a place in an object store; write s3://bucket/prefix, and give credentials and "
            "the endpoint in the environment (docs/decision-log.md)"
        )
    return value.rstrip("/") or "/"


class Decisions(Section):
    """Decisions and how they ended, as Parquet files without prompt text; see docs/decision-log.md."""

    path: Annotated[str, Field(min_length=1), AfterValidator(_folder_or_bucket)]  # a folder, or s3://bucket/prefix
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of sessions
    rotate_mb: PositiveInt = 1024  # limit for all files together (s3://: for those that wait); the oldest are removed
    spool: Annotated[str, Field(min_length=1)] = "decisions-spool"  # with s3://: where files wait for the store

    @property
    def in_bucket(self) -> bool:
        """Whether the files go to an object store, and the folder is the spool."""
        return "://" in self.path


def _collector(value: str) -> str:
    """Raises ValueError, without the value, if spans cannot be sent there: it may hold a password."""
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", value):
        raise ValueError("is not a collector; write its URL for OTLP over HTTP, for example http://collector:4318")
    return value


_Collector = Annotated[str, AfterValidator(_collector), PlainSerializer(without_password), Field(repr=False)]


class Tracing(Section):
    """Requests as OpenTelemetry spans, sent to a collector; see docs/operate.md."""

    endpoint: _Collector  # OTLP over HTTP; /v1/traces is added
    sample: Annotated[float, Field(ge=0, le=1)] = 0.01  # of requests without a trace; others are as their trace says
