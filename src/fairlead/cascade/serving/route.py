"""A route that is a cascade, and one request on its way through it.

Only answers in one piece can be judged. A streaming request is either asked for in one piece and streamed to the client
once it is accepted, or left to the first model unjudged, as the route says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

JUDGED_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})  # of the others, answers pass unjudged


class CascadeRoute(msgspec.Struct, frozen=True):
    """Models, cheapest first. An answer of model i that scores below `thresholds[i]` goes on to model i + 1."""

    name: str
    models: tuple[str, ...]
    thresholds: tuple[float, ...]
    buffer_streams: bool = True
    judge_tool_calls: bool = False
    deadline_s: float = 120.0  # for all stages and judgements of one request
    judge_timeout_s: float = 10.0
    most_bytes: int = 4 << 20  # of a request and of an answer: longer ones pass unjudged
    most_tokens: int | None = None  # in all answers to one request; once they are used, no larger model is asked
    skip_below: float = 0.0  # a model whose chance of a right answer is below this is not asked first
    sampled_share: float = 0.0  # of requests, that go through all models once they are answered


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A request that entered a cascade: what is needed to ask it again of a larger model."""

    route: CascadeRoute
    stage: int  # of the model that answers first
    path: str
    body: bytes  # as the client sent it
    streams: bool  # the client wants events
    with_usage: bool  # and usage among them

    @property
    def model(self) -> str:
        return self.route.models[self.stage]


class _Streaming(msgspec.Struct):
    stream: Any = None
    stream_options: Any = None


_decode_streaming = msgspec.json.Decoder(_Streaming).decode


def enter(route: CascadeRoute, path: str, body: bytes, success_probability: Callable[[str], float]) -> Entry | None:
    """The entry of a request; None if its answer cannot be judged.

    `success_probability` is of a model, for this request: the first model that is likely enough to be right starts.
    """
    if path not in JUDGED_PATHS or len(body) > route.most_bytes:
        return None
    try:
        streaming = _decode_streaming(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # what the router does not read may be broken
        return None
    streams = streaming.stream is True
    if streams and not route.buffer_streams:
        return None
    options = streaming.stream_options
    with_usage = isinstance(options, dict) and options.get("include_usage") is True
    return Entry(route, first_stage(route, success_probability), path, body, streams, with_usage)


def first_stage(route: CascadeRoute, success_probability: Callable[[str], float]) -> int:
    """Where the capability says that a model will fail, its answer is not waited for; the last model always may."""
    if route.skip_below <= 0:
        return 0
    last = len(route.models) - 1
    likely = (stage for stage in range(last) if success_probability(route.models[stage]) >= route.skip_below)
    return next(likely, last)
