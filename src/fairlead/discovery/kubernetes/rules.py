"""Rules out of InferenceObjectives and InferenceModelRewrites. Pure.

Of two rewrites the one with an exact match wins, then the older object, then the rule that stands first. Objects of the
present API group win over those of the legacy one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fairlead.core.splits import Rewrites, Split
from fairlead.discovery.kubernetes.objects import InferenceModelRewrite, InferenceObjective, RewriteRule

_EXACT: Final = "Exact"
_USUAL_WEIGHT: Final = 1  # of all targets, where none has one


def priorities_of(objectives: Iterable[InferenceObjective], pool: str) -> dict[str, int]:
    """By name; the first of a name counts."""
    found: dict[str, int] = {}
    for each in objectives:
        if each.spec.pool_ref.name == pool:
            found.setdefault(each.metadata.name, each.spec.priority or 0)
    return found


def rewrites_of(objects: Iterable[InferenceModelRewrite], pool: str) -> Rewrites:
    by_name: dict[str, Split] = {}
    of_others: Split | None = None
    for rule in _in_order(objects, pool):
        weights = [(each.model_rewrite, _USUAL_WEIGHT if each.weight is None else each.weight) for each in rule.targets]
        if not any(weight > 0 for _, weight in weights):
            continue
        split = Split(weights)
        for match in rule.matches or (None,):
            model = None if match is None else match.model
            if model is None:
                of_others = of_others or split
            elif model.type == _EXACT:
                by_name.setdefault(model.value, split)
    return Rewrites(by_name, of_others)


def _in_order(objects: Iterable[InferenceModelRewrite], pool: str) -> Iterator[RewriteRule]:
    own: dict[str, InferenceModelRewrite] = {}
    for each in objects:
        if each.spec.pool_ref.name == pool:
            own.setdefault(each.metadata.name, each)
    for each in sorted(own.values(), key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name)):
        yield from each.spec.rules
