"""Policies by name, and their parameters checked against what each policy declares.

Another package adds a policy by an entry point of the group `fairlead.policies`: its name is the policy's, its value a
`Rule` class. It is imported when a configuration names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from random import Random
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from fairlead.core.candidates import Candidate
from fairlead.core.cost import CostTerms
from fairlead.core.policy import NO_TUNER, Policy, Tuner

ENTRY_POINTS: Final = "fairlead.policies"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every policy: its fields are the parameters that a configuration may set."""

    priced: ClassVar[bool] = False  # whether its ranking is that of its `prices`: see `core.policy.Priced`

    def __init_subclass__(cls, **options: Any) -> None:
        """A rule with a ranking of its own is not ranked by the prices of the rule that it extends."""
        super().__init_subclass__(**options)
        if "rank" in cls.__dict__:
            cls.priced = "prices" in cls.__dict__

    def explain(self, candidate: Candidate) -> CostTerms | None:
        """The cost in milliseconds; none unless the policy overrides this."""
        return None

    def tuner(self, rng: Random) -> Tuner:
        """A tuner of the parameters; none unless the policy overrides this."""
        return NO_TUNER


_IN_WORDS: Final = (
    (r"^Expected", "must be"),
    (r"\bfloat\b", "a number"),
    (r"\bint\b", "a whole number"),
    (r"\bstr\b", "text"),
    (r"\bbool\b", "true or false"),
    (r", got null", ", and nothing is written"),
    (r", got ", ", not "),
)
_R = TypeVar("_R", bound=type[Rule])
_registry: dict[str, type[Rule]] = {}


def register(name: str) -> Callable[[_R], _R]:
    def add(policy: _R) -> _R:
        _registry[name] = policy
        return policy

    return add


def policy_names() -> tuple[str, ...]:
    return tuple(sorted({*_registry, *entry_points(group=ENTRY_POINTS).names}))


class PolicyError(ValueError):
    """A policy that cannot be built, because of `key`: `name`, or one of its parameters."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def build_policy(name: str, parameters: Mapping[str, Any]) -> Policy:
    """The policy called `name`. Raises PolicyError, with what to write instead, for an unknown name or parameter."""
    rule = _registry.get(name) or _from_entry_point(name)
    if rule is None:
        near = get_close_matches(name, policy_names(), n=1)
        hint = f'; did you mean "{near[0]}"?' if near else "."
        raise PolicyError("name", f'no policy is called "{name}"{hint} Known names: {", ".join(policy_names())}')
    try:
        return msgspec.convert(dict(parameters), rule)  # type: ignore[return-value]  # every Rule ranks
    except msgspec.ValidationError as error:
        known = ", ".join(map(_parameter, msgspec.structs.fields(rule))) or "none"
        unknown = next((key for key in parameters if key not in rule.__struct_fields__), None)
        if unknown is not None:
            message = f'policy {name}: no parameter is called "{unknown}"; its parameters are: {known}'
            raise PolicyError(unknown, message) from None
        what, _, at = str(error).replace("`", "").partition(" - at $.")
        for theirs, ours in _IN_WORDS:
            what = re.sub(theirs, ours, what)
        raise PolicyError(at, f"policy {name}: {at} {what}; its parameters are: {known}") from None


def _parameter(field: msgspec.structs.FieldInfo) -> str:
    return f"{field.name} (required)" if field.required else f"{field.name}={field.default}"


def _from_entry_point(name: str) -> type[Rule] | None:
    """Raises PolicyError if the entry point of that name cannot be loaded, is not a policy, or is not the only one."""
    points = {point.value: point for point in entry_points(group=ENTRY_POINTS, name=name)}
    if not points:
        return None
    if len(points) > 1:
        brought = ", ".join(sorted(points))
        raise PolicyError("name", f'two packages bring a policy "{name}": {brought}; uninstall one of them')
    ((value, point),) = points.items()
    try:
        rule = point.load()
    except (Exception, SystemExit) as error:  # raised by the other package: reported as a mistake of the configuration
        raise PolicyError("name", f'the policy "{name}" of {value} cannot be loaded: {error!r}') from error
    if not (isinstance(rule, type) and issubclass(rule, Rule) and callable(getattr(rule, "rank", None))):
        raise PolicyError("name", f'the policy "{name}" of {value} is no Rule that ranks')
    return rule
