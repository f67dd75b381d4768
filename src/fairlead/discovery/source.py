"""What every source of endpoints is: a stream of full sets, with a status that says how old the last one is.

A source yields the whole set each time, never a difference, and only sets that it has really read: when the file is
broken, the name does not resolve or the API server is away, it reports `status.failed` and yields nothing, so that the
last set stays in force. An empty set is obeyed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from fairlead.core.endpoint import Role
from fairlead.discovery.rules import NO_RULES, RequestRules


class UnusableError(Exception):
    """What a source has read cannot be used, and why: a sentence. The last set stays in force."""


class DiscoveredEndpoint(msgspec.Struct, frozen=True):
    """One engine as a source describes it. What is left empty is asked of the engine, or is the configuration's."""

    address: str  # ip:port, or [v6]:port
    models: tuple[str, ...] = ()  # the first is the base model; empty: all that the engine lists
    engine: str = ""  # a dialect; empty: by what the engine says of itself
    region: str = ""
    role: Role = "both"  # prefill: it only computes prompts for others; decode: it computes none for others
    kv_connector: str = ""  # by which the KV of a prompt goes on: nixl, proxy or sglang
    bootstrap: str = ""  # with sglang and role prefill: host:port of its bootstrap server
    labels: Mapping[str, str] = {}
    prefill_ms_per_token: float | None = None  # where its accelerator is not that of the model's other engines
    decode_ms_per_token: float | None = None
    capability: str = ""  # a file of `fairlead fit`, relative to the configuration; empty: that of the model
    draining: bool = False  # not ready or about to end: gets nothing new, and keeps what it has until it is gone


EndpointSet = tuple[DiscoveredEndpoint, ...]


@dataclass(slots=True)
class SourceStatus:
    """How one source fares. It belongs to `Discovery`; the source calls its methods, and sets `found_rules`."""

    name: str  # as in logs and metric labels: file, dns, kubernetes
    clock_s: Callable[[], float]
    endpoints: EndpointSet | None = None  # None: no set has come yet
    confirmed_s: float | None = None  # when the set was last known to be true
    changes: int = 0  # sets that differed from the one before
    failures: int = 0
    own: frozenset[str] = frozenset()  # listed addresses at which Fairlead or its gateway listens
    refused: int = 0  # of those, how often one was listed anew
    error: str = ""  # why the set is not renewed; empty while it is
    rules: RequestRules = NO_RULES  # in force
    found_rules: RequestRules = NO_RULES  # in force from the source's next set on
    rules_failures: int = 0
    rules_error: str = ""  # why they are not renewed
    followed_s: float = field(init=False)  # since when it is

    def __post_init__(self) -> None:
        self.followed_s = self.clock_s()

    def confirmed(self) -> None:
        """The source was reached, and the last set still holds."""
        self.confirmed_s, self.error = self.clock_s(), ""

    def failed(self, reason: str) -> None:
        """The source cannot be read now; the last set stays. `reason` says what an operator should look at."""
        self.failures += 1
        self.error = reason

    def rules_confirmed(self) -> None:
        self.rules_error = ""

    def rules_failed(self, reason: str) -> None:
        """The rules cannot be read now; the last stay. That is no failure of the endpoints."""
        self.rules_failures += 1
        self.rules_error = reason

    def age_s(self) -> float | None:
        """For how long the set has not been confirmed; None before the first."""
        return None if self.confirmed_s is None else max(0.0, self.clock_s() - self.confirmed_s)

    def unread_s(self) -> float:
        """The same, and before the first for how long it is followed."""
        age_s = self.age_s()
        return max(0.0, self.clock_s() - self.followed_s) if age_s is None else age_s


class Source(Protocol):
    """One place where endpoints are listed."""

    @property
    def name(self) -> str:
        """Short and bounded, as it is a metric label: the kind of the source, and a number where there are several."""

    def sets(self, status: SourceStatus) -> AsyncIterator[EndpointSet]:
        """Full sets, the first as soon as it is known, the next when it changes; forever, until it is closed.

        Failures that may pass are reported to `status` and retried within. An exception ends the stream: it is counted
        and logged, and the source is asked for a new stream after a while.
        """
