"""The sections on where requests go: `policy`, the `tuner` of its weights, and `migration` from hot endpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator

from fairlead.config.errors import InvalidAtError
from fairlead.policies import PolicyError, build_policy
from fairlead.section import Section


class PolicyConfig(BaseModel):
    """The policy's name; every other key is one of its parameters."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "fairlead"

    @model_validator(mode="before")
    @classmethod
    def _is_a_mapping(cls, value: object) -> object:
        if isinstance(value, dict | cls):
            return value
        name = value if isinstance(value, str) else "fairlead"
        raise ValueError(f"must be a mapping with the policy's name; write {{name: {name}}}")

    @model_validator(mode="after")
    def _known_with_these_parameters(self) -> Self:
        try:
            build_policy(self.name, self.parameters())
        except PolicyError as error:
            raise InvalidAtError((error.key,), str(error)) from None
        return self

    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


class Tuner(Section):
    """Whether the policy's weights are learned from the outcomes of requests; see docs/tune.md."""

    mode: Annotated[Literal["off", "shadow", "live"], BeforeValidator(_off)] = "off"  # shadow: changes nothing
    window: Annotated[int, Field(ge=20, le=100_000)] = 64  # requests that one measurement takes
    wash_out: Annotated[int, Field(ge=0, le=100_000)] = 16  # requests that are not counted after a change
    warm_up: Annotated[int, Field(ge=0, le=1_000_000)] = 256  # requests before the first measurement
    guard: Annotated[float, Field(ge=1, allow_inf_nan=False)] = (
        1.5  # times the usual p95: beyond it weights are given up
    )


class Migration(Section):
    """When sessions leave a hot endpoint. The section, even if empty, turns moving on; see docs/migrate.md."""

    hot_tokens: Annotated[int, Field(ge=0)] = 16_384  # waiting for prefill; an endpoint with more is hot
    hot_ratio: Annotated[float, Field(ge=1, allow_inf_nan=False)] = (
        2.0  # if it also has more than this times the others' median
    )
    cool_down_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0  # in which a session does not move again
    least_tokens: PositiveInt = 2048  # of context that the source holds and the target does not
    most_copies: PositiveInt = 4  # at once
    most_copies_per_endpoint: PositiveInt = 1  # at once, as source or as target
    export_s: Annotated[float, Field(gt=0, le=600)] = 30.0  # deadline of the source's part, its queue included
    import_s: Annotated[float, Field(gt=0, le=600)] = 30.0  # deadline of the target's part
