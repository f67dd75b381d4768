"""The `routes` section, and `reuse`, which is by route."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from fairlead.cascade.settings import CascadeRouteSettings
from fairlead.config.values import Names
from fairlead.context.blocks import DEFAULT_FORMATS, Format
from fairlead.section import Section

ANY_ROUTE = "*"  # in `reuse`: all routes that are not named
Operations = Annotated[tuple[Literal["order", "dedup"], ...], Field(strict=False)]


class Reuse(Section):
    """Context reuse of one route: what is done to a request, by default or on request; see docs/reuse.md."""

    always: Operations = ()
    on_request: Operations = ()
    formats: Annotated[tuple[Format, ...], Field(strict=False, min_length=1)] = DEFAULT_FORMATS


_Weight = Annotated[int, Field(ge=1, le=1_000_000)]


class SplitRoute(Section):
    """A route whose models get shares of the requests by weight; a session keeps its model."""

    split: Annotated[dict[str, _Weight], Field(min_length=1, max_length=16)]  # model -> weight


MODELS_TAG, CASCADE_TAG, SPLIT_TAG = "<models>", "<cascade>", "<split>"


def _kind_of_route(value: object) -> str:
    if isinstance(value, SplitRoute) or (isinstance(value, dict) and "split" in value):
        return SPLIT_TAG
    return CASCADE_TAG if isinstance(value, dict | CascadeRouteSettings) else MODELS_TAG


Route = Annotated[
    Annotated[Names, Tag(MODELS_TAG)]
    | Annotated[CascadeRouteSettings, Tag(CASCADE_TAG)]
    | Annotated[SplitRoute, Tag(SPLIT_TAG)],
    Discriminator(_kind_of_route),
]
