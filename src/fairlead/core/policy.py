"""The contract between the router, its policies and what tunes them: rankings, decisions and their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final, Literal, NamedTuple, Protocol, TypeGuard

import msgspec

from fairlead.core.adapter_slots import AdapterNeed
from fairlead.core.candidates import Candidate, Standing
from fairlead.core.cost import CostTerms, Prices
from fairlead.core.facts import RequestFacts
from fairlead.core.moves import Move, Stay
from fairlead.core.prefill_decode import PrefillChoice

Why = Literal["cost", "affinity", "migration", "fallback", "rendezvous"]


class Ranked(msgspec.Struct, frozen=True, gc=False):
    candidate: Candidate
    score: float  # least is best; in the policy's own unit


class Ranking(NamedTuple):
    """Candidates, best first, and what the first of them was chosen for."""

    order: Sequence[Ranked]
    why: Why = "cost"


class Policy(Protocol):
    """A routing rule. It keeps nothing between two calls: all it knows is in its arguments and its parameters.

    What a rule learns from is kept by its tuner, which replaces the rule by one with other parameters.
    """

    priced: ClassVar[bool]  # whether it is `Priced`

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        """Every candidate, best first; `candidates` is never empty."""
        ...

    def explain(self, candidate: Candidate) -> CostTerms | None:
        """The terms of a candidate's cost, or None for a rule whose score is not in milliseconds."""
        ...

    def tuner(self, rng: Random) -> Tuner:
        """A new tuner of this rule's parameters; `NO_TUNER` for a rule that stays as it is."""
        ...


class Priced(Policy, Protocol):
    """A policy whose score is a cost that is linear in the request's tokens, ranked by `ranking.in_order`.

    Its `prices` are kept until an endpoint changes, and `rank` is then not called: both must give the same costs.
    """

    @property
    def tie_ms(self) -> float: ...

    @property
    def retry_penalty(self) -> float: ...

    @property
    def adapter_weight(self) -> float: ...

    def prices(self, at: Candidate | Standing) -> Prices: ...


def is_priced(policy: Policy) -> TypeGuard[Priced]:
    return policy.priced


class Credit(msgspec.Struct, frozen=True, gc=False):
    """Tokens that the chosen engine should have of this conversation because it gave the answer before."""

    prompt_tokens: int  # of the prompt that it answered
    reply_tokens: int


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes and why. `addresses` holds the choice and, after it, the fallbacks of the same model."""

    addresses: tuple[str, ...]
    model: str
    why: Why
    cached_tokens: int  # of the prompt, at the chosen endpoint
    queued_tokens: int  # waiting for prefill there before this request
    rtt_ms: float
    considered: int
    best: tuple[Ranked, ...]  # candidates, for people
    policy: Policy  # that ranked them
    decided_s: float
    number: int  # of this router's decisions, from 1
    form: int = 0  # of the prompt, where it could take others; 0 is the request's own
    form_tokens: int = 0  # cached at the chosen endpoint in this form, beyond those of the request's own
    migration: Move | Stay | None = None  # of the request's session; None: there was no reason to move
    cached_blocks: int = 0  # of the prompt's chain, at the chosen endpoint
    credit: Credit | None = None
    prefill: PrefillChoice | None = None  # where its prompt is computed; None: nothing to choose from
    adapter: AdapterNeed | None = None  # at the chosen endpoint
    queued_attended_tokens: int = 0  # by those that wait
    strayed: bool = False  # it went to where its own context is, though its session has moved elsewhere

    def terms(self, ranked: Ranked) -> CostTerms | None:
        """The cost of one of the best in terms, where the policy has one; not needed to decide, so made when asked."""
        return self.policy.explain(ranked.candidate)


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why no endpoint can be given."""

    # `one_server`: it must do both halves; `kills_engines`: its prompt does, as it seems.
    reason: Literal["unknown_model", "no_endpoint", "slo_unmet", "one_server", "kills_engines"]
    late_ms: float = 0.0  # by which the first token would miss its objective


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How one request ended, seen from the router. Unknown is None, which is not 0."""

    code: int  # HTTP status; 499: the client left before the end
    total_ms: float  # from the pick to the end
    first_token_ms: float | None = None  # from the pick; known of answers that are observed in full
    prompt_tokens: int | None = None  # these three as the engine reports them, of the same answers
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    evicted: bool = False  # ended by Fairlead for a higher priority, after its status was out


class Ended(msgspec.Struct, frozen=True, gc=False):
    """One request that has ended, as the request path leaves it to those who record it."""

    request: RequestFacts
    decision: Decision
    outcome: Outcome
    address: str  # of the endpoint that answered
    request_id: bytes
    begun_s: float  # when its headers came; this and the next by the router's clock
    ended_s: float
    waited_ms: float = 0.0  # in the admission queue, before the decision


class Tuner(Protocol):
    """Keeps what a policy may not: it observes how decisions went, and replaces the policy by one with other weights.

    A router calls it for every decision that ended, off the request path.
    """

    def observe(self, decision: Decision, outcome: Outcome, decided: int, now_s: float) -> Policy | None:
        """The policy to use from now on, or None for the one in force; `decided` is the last decision's number."""
        ...


class _NoTuner:
    """The weights stay as they are."""

    def observe(self, decision: Decision, outcome: Outcome, decided: int, now_s: float) -> Policy | None:  # noqa: ARG002
        return None


NO_TUNER: Final[Tuner] = _NoTuner()
