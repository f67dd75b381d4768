"""What a request wants of its answer's times."""

from __future__ import annotations

from math import inf

import msgspec


class Slo(msgspec.Struct, frozen=True, gc=False):
    """Infinite: not wanted."""

    ttft_ms: float = inf  # to the first token, of what is left of it
    tpot_ms: float = inf  # between two tokens
    refuses: bool = False  # where no endpoint should meet it; else it goes where the cost is least

    def after(self, waited_ms: float) -> Slo:
        return msgspec.structs.replace(self, ttft_ms=self.ttft_ms - waited_ms) if waited_ms else self
