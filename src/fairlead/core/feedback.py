"""What became of a decision, and who may learn from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:  # both name what is here
    from fairlead.core.ranking import Policy
    from fairlead.core.router import Decision


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How one request ended, seen from the router. Unknown is None, which is not 0."""

    code: int  # HTTP status; 499: the client left before the end
    total_ms: float  # from the pick to the end
    first_token_ms: float | None = None  # from the pick; known of answers that are observed in full
    prompt_tokens: int | None = None  # these three as the engine tells, of the same answers
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class Tuner(Protocol):
    """Keeps what a policy may not: it hears how decisions went, and puts the same policy in force with other weights.

    A router calls it for every decision that ended, beside the request path.
    """

    def heard(self, decision: Decision, outcome: Outcome, decided: int, now_s: float) -> Policy | None:
        """The policy to use from now on, or None for the one in force; `decided` is the last decision's number."""
        ...
