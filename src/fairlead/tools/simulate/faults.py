"""Faults that a test can set on a simulated engine, one at a time.

`POST /fault {"kind": ..., "count": n, "delay_ms": ms, "status": code, "text": text}` sets one, `DELETE /fault` clears
it. `count` is how many requests it affects; without it, all until it is cleared. `delay_ms` is of the wall clock. The
kinds:

- `down`: everything gets 503, `/health` too, as on an engine whose core has crashed.
- `slow`: `delay_ms` (1,000) pass before a request is answered, or less when the fault is cleared meanwhile.
- `error`: a request gets `status` (500) in OpenAI's envelope.
- `dies`: the TCP connection is reset, and those of all later requests; other pages get 503.
- `dies_answering`: the same, but a stream begins before, and has its first tokens.
- `reset`: the TCP connection is reset before any byte of a response.
- `cut`: the connection is closed in the middle: of a stream after its first tokens, of a body at its half.
- `hang`: a request is taken and never answered; `/health` stays well.
- `miscount`: a request is answered, but `usage` counts one prompt token more than there were.
- `no_metrics`: `/metrics` is a 404, as on an SGLang without `--enable-metrics`; all else is well.
- `no_bootstrap`: the bootstrap server of the KV connector resets its connections, until this is cleared.

Faults affect and count requests for inference, with `only` (`export` or `import`) only that leg of a KV transfer, and
with `text` only those whose body contains it.
`down` also affects `/health` and the other pages, uncounted, and so do `dies` and `dies_answering` from the first on.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Literal

import msgspec

# fmt: off
FaultKind = Literal[
    "down", "slow", "error", "dies", "dies_answering", "reset", "cut", "hang", "miscount", "no_metrics", "no_bootstrap",
]
# fmt: on
_OF_OTHER_PAGES: Final = ("no_metrics", "no_bootstrap")  # they strike no request
Leg = Literal["export", "import"]


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: FaultKind
    count: int | None = None
    delay_ms: float = 1000.0
    status: int = 500
    only: Leg | None = None
    text: str = ""


class Faults:
    """The current fault, and how many requests it will still affect."""

    def __init__(self) -> None:
        self.current: Fault | None = None
        self._left = 0
        self._changed = asyncio.Event()

    def set(self, fault: Fault | None) -> None:
        self.current = fault if fault is None or fault.count is None or fault.count > 0 else None
        self._left = fault.count if fault is not None and fault.count is not None else -1
        self._changed.set()
        self._changed = asyncio.Event()

    async def delay(self, fault: Fault) -> None:
        """Wait until the time of a `slow` fault has passed, or the fault is replaced or cleared."""
        with suppress(TimeoutError):
            async with asyncio.timeout(fault.delay_ms / 1000):
                await self._changed.wait()

    def strike(self, leg: Leg | None, body: bytes) -> Fault | None:
        """The fault for this request, which may be a leg of a KV transfer; counts it."""
        fault = self.current
        if fault is None or fault.kind in _OF_OTHER_PAGES or fault.only not in (None, leg):
            return None
        if fault.text.encode() not in body:
            return None
        if self._left > 0:
            self._left -= 1
            if self._left == 0:
                self.current = None
        return fault

    @property
    def no_metrics(self) -> bool:
        return self.current is not None and self.current.kind == "no_metrics"

    @property
    def no_bootstrap(self) -> bool:
        return self.current is not None and self.current.kind == "no_bootstrap"

    @property
    def down(self) -> bool:
        """For all requests: an engine that is still to die has a `text` that kills it."""
        fault = self.current
        return fault is not None and (fault.kind == "down" or (fault.kind == "dies" and not fault.text))


def parse_fault(body: bytes) -> Fault:
    """Raises ValueError that says what is wrong."""
    try:
        fault = msgspec.json.decode(body, type=Fault)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if not (400 <= fault.status <= 599 and fault.delay_ms >= 0):
        raise ValueError("status must be from 400 to 599, and delay_ms 0 or more")
    return fault
