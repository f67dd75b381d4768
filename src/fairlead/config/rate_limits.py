"""The `rate_limits` section: what each tenant may take in a minute."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, PositiveInt, model_validator

from fairlead.config.errors import InvalidAtError
from fairlead.section import Section

ANY_TENANT: Final = "*"
_Rate = Annotated[float, Field(gt=0, le=1e15)] | None


class RateLimit(Section):
    """What one tenant may take in a minute, and at once after a minute of rest. Absent: as much as it wants."""

    tokens: _Rate = None  # of prompts, cached ones too, and of answers
    engine_ms: _Rate = None  # of engine time, over all engines; one engine gives some 60,000 in a minute

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.tokens is None and self.engine_ms is None:
            raise InvalidAtError((), "limits nothing; write tokens, engine_ms or both")
        return self


class RateLimits(Section):
    """Present: a tenant that has had its share of a minute gets 429, with OpenAI's headers."""

    tenants: Annotated[dict[str, RateLimit], Field(min_length=1, max_length=10_000)]  # "*": each that is not named
    sidecars: PositiveInt = 1  # that share the traffic; without a Redis store each keeps its part of a limit
