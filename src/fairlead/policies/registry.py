"""Policies by name, and their parameters checked against what each policy declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from random import Random
from typing import Any, TypeVar

import msgspec

from fairlead.core.cost import CostTerms
from fairlead.core.feedback import Tuner
from fairlead.core.pool import Candidate
from fairlead.core.ranking import Policy


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every policy: its fields are the parameters that a configuration may set."""

    def explain(self, candidate: Candidate) -> CostTerms | None:  # noqa: ARG002
        """No cost in milliseconds, unless the policy says otherwise."""
        return None

    def tuner(self, rng: Random) -> Tuner | None:  # noqa: ARG002
        """Parameters stay as they are, unless the policy says otherwise."""
        return None


_R = TypeVar("_R", bound=type[Rule])
_registry: dict[str, type[Rule]] = {}


def register(name: str) -> Callable[[_R], _R]:
    def add(policy: _R) -> _R:
        _registry[name] = policy
        return policy

    return add


def policy_names() -> tuple[str, ...]:
    return tuple(sorted(_registry))


def build_policy(name: str, parameters: Mapping[str, Any]) -> Policy:
    """The policy called `name`. Raises ValueError, with what to write instead, for a name or parameter unknown."""
    rule = _registry.get(name)
    if rule is None:
        near = get_close_matches(name, _registry, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise ValueError(f'no policy is called "{name}"{hint} Known are: {", ".join(policy_names())}')
    try:
        return msgspec.convert(dict(parameters), rule)  # type: ignore[return-value]  # every Rule ranks
    except msgspec.ValidationError as error:
        known = ", ".join(f"{field}={getattr(rule(), field)}" for field in rule.__struct_fields__) or "none"
        raise ValueError(f"policy {name}: {error}; its parameters are: {known}") from None
