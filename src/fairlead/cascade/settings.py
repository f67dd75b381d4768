"""A route of type `cascade` in the configuration."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from fairlead.cascade.route import CascadeRoute
from fairlead.section import Section


def _url(value: str) -> str:
    if not re.match(r"https?://[^/\s]+", value):
        raise ValueError("is not the URL of a judge; write http://host:port, or https://host")
    return value


def _function(value: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", value):
        raise ValueError(f'"{value}" names no function; write module:function, for example judges:score')
    return value


class JudgeSettings(Section):
    """A model at an OpenAI-compatible endpoint, or a function `module:function` next to the configuration file."""

    url: Annotated[str, AfterValidator(_url)] | None = None
    model: str = ""
    function: Annotated[str, AfterValidator(_function)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.url is None) == (self.function is None):
            raise ValueError("write either url and model, or function: module:function")
        if self.url is not None and not self.model:
            raise ValueError("url needs a model; name the one that judges there")
        return self


class SampleSettings(Section):
    """The share of requests that goes through all models, from which `fairlead plan watch` plans again."""

    share: Annotated[float, Field(gt=0, le=1)]  # of the answers
    file: Annotated[str, Field(min_length=1)]  # relative to the configuration


class CascadeRouteSettings(Section):
    cascade: Annotated[tuple[str, ...], Field(min_length=2, max_length=8, strict=False)]
    thresholds: Annotated[tuple[Annotated[float, Field(ge=0, le=100)], ...], Field(strict=False)]
    judge: JudgeSettings
    streaming: Literal["buffer", "pass"] = "buffer"
    tool_calls: Literal["accept", "judge"] = "accept"
    deadline_s: Annotated[float, Field(gt=0, le=590)] = 120.0  # Envoy holds an answer for ten minutes at most
    judge_timeout_s: Annotated[float, Field(gt=0, le=590)] = 10.0
    max_bytes: PositiveInt = 4 << 20
    budget_tokens: PositiveInt | None = None
    skip_below: Annotated[float, Field(ge=0, le=1)] = 0.0  # a first model less likely right than this is not asked
    sample: SampleSettings | None = None

    @model_validator(mode="after")
    def _a_threshold_between_two_models(self) -> Self:
        if len(self.thresholds) != len(self.cascade) - 1:
            raise ValueError(
                f"{len(self.cascade)} models need {len(self.cascade) - 1} thresholds, there are {len(self.thresholds)}"
            )
        if len(set(self.cascade)) < len(self.cascade):
            raise ValueError("a model is in the cascade twice; remove one")
        return self

    def route(self, name: str) -> CascadeRoute:
        return CascadeRoute(
            name=name,
            models=self.cascade,
            thresholds=self.thresholds,
            buffer_streams=self.streaming == "buffer",
            judge_tool_calls=self.tool_calls == "judge",
            deadline_s=self.deadline_s,
            judge_timeout_s=self.judge_timeout_s,
            most_bytes=self.max_bytes,
            most_tokens=self.budget_tokens,
            skip_below=self.skip_below,
            sampled_share=0.0 if self.sample is None else self.sample.share,
        )
