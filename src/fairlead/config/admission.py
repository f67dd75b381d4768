"""The `admission` section: what waits in the sidecar when the pool is full, in which order, and how much of it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from fairlead.addresses import HeaderName
from fairlead.config.errors import InvalidAtError, KeyPath
from fairlead.section import Section

_Share = Annotated[float, Field(gt=0, le=1)]
_Wait = Annotated[float, Field(gt=0, le=240)]  # seconds; Envoy ends a request that stands still for five minutes
_LOW_SHARE = 0.8


def usual_share(level: int) -> float:
    return 1.0 if level >= 0 else _LOW_SHARE


class Priority(Section):
    """A named level. Requests of a higher one go first."""

    level: Annotated[int, Field(ge=-1000, le=1000)]  # higher goes first; requests without a priority are of level 0
    share: _Share | None = None  # of what fills an endpoint; None: all, and below level 0 four fifths
    max_wait_s: _Wait | None = None  # None: that of admission
    max_requests: PositiveInt | None = None  # that wait at this level; None: only the other limits hold

    @property
    def share_in_force(self) -> float:
        if self.share is not None:
            return self.share
        return usual_share(self.level)


class Objective(Section):
    """What requests of one model or route want of the times of their answers."""

    ttft_ms: Annotated[float, Field(gt=0, le=600_000)] | None = None  # to the first token
    tpot_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None  # between two tokens
    otherwise: Literal["best_effort", "refuse"] = "best_effort"  # where no endpoint should meet it

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        if self.ttft_ms is None and self.tpot_ms is None:
            raise InvalidAtError((), "wants nothing; write ttft_ms, tpot_ms or both")
        return self


class Admission(Section):
    """Present: requests that no endpoint can begin soon wait here, in order, and are refused with 429 in the end."""

    evict: Literal["lower"] | None = None  # ends a streamed answer of a lower priority; None: what runs is left alone
    begin_within_ms: Annotated[float, Field(gt=0, le=600_000)] | None = None  # None: a few usual prefills, 1 s at least
    max_wait_s: _Wait = 30.0  # then 429
    aging_s: _Wait = 20.0  # after this a request goes before others now and then, whatever its level
    max_requests: PositiveInt = 10_000  # that wait in this sidecar
    max_bytes: PositiveInt = 128 << 20  # of the bodies of those that wait
    max_requests_of_tenant: PositiveInt = 2_000  # at one level
    priorities: Annotated[dict[str, Priority], Field(max_length=16)] = Field(default_factory=dict)
    default: str | None = None  # the priority of requests that name none; None: level 0
    routes: dict[str, str] = Field(default_factory=dict)  # model or route -> priority
    slo: dict[str, Objective] = Field(default_factory=dict)  # by model or route; "*": those that are not named
    header: HeaderName | None = None  # names the priority of a request
    vouched_by: Annotated[str, Field(min_length=1)] | None = (
        None  # who sets that header, the objective, the fairness id, and the name of another model
    )

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        named: dict[KeyPath, str] = {("routes", route): name for route, name in self.routes.items()}
        if self.default is not None:
            named[("default",)] = self.default
        for path, name in named.items():
            if name not in self.priorities:
                known = ", ".join(self.priorities) or "none; add it to admission.priorities"
                raise InvalidAtError(path, f'no priority is called "{name}"; known names: {known}')
        return self

    @model_validator(mode="after")
    def _levels_are_distinct(self) -> Self:
        names: dict[int, str] = {}
        for name, priority in self.priorities.items():
            first = names.setdefault(priority.level, name)
            if first != name:
                message = f'is also the level of "{first}"; give one of them another'
                raise InvalidAtError(("priorities", name, "level"), message)
        return self

    @model_validator(mode="after")
    def _a_lower_level_has_no_larger_share(self) -> Self:
        lower: tuple[str, float] | None = None
        for name, priority in sorted(self.priorities.items(), key=lambda item: item[1].level):
            share = priority.share_in_force
            if lower is not None and lower[1] > share:
                message = (
                    f'is less than {lower[1]:g}, that of the lower priority "{lower[0]}", which would go before it'
                )
                raise InvalidAtError(("priorities", name, "share"), message)
            lower = name, share
        return self

    @model_validator(mode="after")
    def _somebody_sets_the_header(self) -> Self:
        if self.header is not None and self.vouched_by is None:
            message = (
                "is required with header: who sets it, for any client could write a priority; see docs/admission.md"
            )
            raise InvalidAtError(("vouched_by",), message)
        return self
