"""A route that is a cascade, and one request in it.

Only whole answers can be judged. The answer to a streaming request is either fetched whole and streamed to the client
once accepted, or passed from the first model unjudged, as the route says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from fairlead.api.paths import JUDGED_PATHS
from fairlead.api.spans import Span


class CascadeRoute(msgspec.Struct, frozen=True):
    """Models, cheapest first. If the answer of model i scores below `thresholds[i]`, model i + 1 is asked."""

    name: str
    models: tuple[str, ...]
    thresholds: tuple[float, ...]
    buffer_streams: bool = True
    judge_tool_calls: bool = False
    deadline_s: float = 120.0  # for all stages and judgements of one request
    judge_timeout_s: float = 10.0
    most_bytes: int = 4 << 20  # limit for a request and for an answer: longer ones pass unjudged
    most_tokens: int | None = None  # over all answers to one request; once used up, no larger model is asked
    skip_below: float = 0.0  # a model whose chance of a right answer is below this is not asked first
    sampled_share: float = 0.0  # of requests: these go through all models after they are answered


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A request in a cascade: what is needed to send it to a larger model."""

    route: CascadeRoute
    stage: int  # index of the model that answers first
    path: str
    body: bytes  # as the client sent it
    streams: bool  # the client wants events
    with_usage: bool  # the client wants usage among the events
    spans: Mapping[str, Span] | None = None  # where the body's values are; None: not parsed yet

    @property
    def model(self) -> str:
        return self.route.models[self.stage]


def enter(
    route: CascadeRoute,
    path: str,
    body: bytes,
    success_probability: Callable[[str], float],
    *,
    streams: bool,
    with_usage: bool,
    spans: Mapping[str, Span] | None = None,
    attempted: Collection[str] = (),
) -> Entry | None:
    """The entry of a request; None if its answer cannot be judged.

    `success_probability` maps a model to its chance of answering this request correctly: the first model that is likely
    enough to be right starts, of those that have not `attempted` it.
    """
    if path not in JUDGED_PATHS or len(body) > route.most_bytes or (streams and not route.buffer_streams):
        return None
    stage = first_stage(route, success_probability, attempted)
    return Entry(route, stage, path, body, streams, with_usage, spans)


def first_stage(
    route: CascadeRoute, success_probability: Callable[[str], float], attempted: Collection[str] = ()
) -> int:
    """The first model whose success probability is high enough to be worth asking; the last model always is.

    A model that has `attempted` this request, and was wrong, would be wrong again, and its judge content again.
    """
    for stage, model in enumerate(route.models[:-1]):
        if model not in attempted and (route.skip_below <= 0 or success_probability(model) >= route.skip_below):
            return stage
    return len(route.models) - 1
