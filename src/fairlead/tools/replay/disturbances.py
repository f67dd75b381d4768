"""What happens to engines that no router controls: speeds that vary, and traffic that comes from elsewhere.

All draws come from the run's seed, so that every policy gets the same disturbances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from math import exp, pi, sin
from random import Random
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fairlead.tools.simulate.engine_request import EngineRequest

_DRAWS: Final = 4096
_IDS: Final = 1 << 58  # block ids of foreign prompts are above it: nobody else's prompt has them
_IDS_EACH: Final = 1 << 20


class Pace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How speeds vary. `noise` is the standard deviation of the logarithm of a step's time.

    Besides, each engine becomes slower and faster by a factor of at most exp(`drift`), in a sine of `period_s` whose
    phase is its own.
    """

    noise: Annotated[float, Meta(ge=0, le=3)] = 0.0
    drift: Annotated[float, Meta(ge=0, le=3)] = 0.0
    period_s: Annotated[float, Meta(gt=0)] = 600.0

    def of_engine(self, seed: int, place: int) -> Callable[[float], float] | None:
        """The factor of a step that starts at a time in ms; None where it is always 1."""
        if not self.noise and not self.drift:
            return None
        rng = Random(f"pace {seed} {place}")
        phase = 2 * pi * rng.random()
        draws = [exp(self.noise * rng.gauss(0.0, 1.0)) for _ in range(_DRAWS)] if self.noise else [1.0]
        turn = 2 * pi / (1e3 * self.period_s)
        steps = count()

        def factor(now_ms: float) -> float:
            return draws[next(steps) % len(draws)] * exp(self.drift * sin(turn * now_ms + phase))

        return factor


class Foreign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that reach each engine past every router, as a Poisson process; no two share a prompt.

    Engines get between half and one and a half times as many as `requests_per_s` says.
    """

    requests_per_s: Annotated[float, Meta(ge=0)] = 0.0
    prompt_tokens: Annotated[int, Meta(ge=1)] = 2000
    output_tokens: Annotated[int, Meta(ge=1)] = 200

    def arrivals(self, seed: int, place: int, block_tokens: int) -> Iterator[tuple[float, EngineRequest]]:
        """Times in ms and requests of one engine, without end; none at a rate of 0."""
        if not self.requests_per_s:
            return
        rng = Random(f"foreign {seed} {place}")
        per_ms = self.requests_per_s * rng.uniform(0.5, 1.5) / 1e3
        blocks = self.prompt_tokens // block_tokens
        at_ms = 0.0
        for number in count():
            at_ms += rng.expovariate(per_ms)
            first = _IDS + number * _IDS_EACH
            request = EngineRequest(
                f"foreign {number}", self.prompt_tokens, self.output_tokens, range(first, first + blocks)
            )
            yield at_ms, request
