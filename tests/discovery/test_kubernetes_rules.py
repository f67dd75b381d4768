"""Which of several InferenceModelRewrites and InferenceObjectives counts."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.splits import NO_REWRITES, Split
from fairlead.discovery.kubernetes.objects import InferenceModelRewrite, InferenceObjective
from fairlead.discovery.kubernetes.rules import priorities_of, rewrites_of


def rewrite(name: str, made: str, *rules: dict[str, Any], pool: str = "p") -> InferenceModelRewrite:
    document = {
        "metadata": {"name": name, "creationTimestamp": made},
        "spec": {"poolRef": {"name": pool}, "rules": list(rules)},
    }
    return msgspec.convert(document, InferenceModelRewrite)


def to(model: str, *of: str) -> dict[str, Any]:
    return {"matches": [{"model": {"value": each}} for each in of], "targets": [{"modelRewrite": model}]}


def test_exact_beats_generic_then_the_older_object_then_the_first_rule() -> None:
    old = rewrite("z", "2026-01-01T00:00:00Z", to("all-old"), to("x-old", "x"), to("x-second", "x"))
    new = rewrite("a", "2026-02-01T00:00:00Z", to("x-new", "x"), to("y-new", "y"), to("all-new"))
    found = rewrites_of([new, old], "p")
    assert found.by_name == {"x": Split([("x-old", 1)]), "y": Split([("y-new", 1)])}
    assert found.of_others == Split([("all-old", 1)])


def test_objects_of_one_age_go_by_name() -> None:
    made = "2026-01-01T00:00:00Z"
    found = rewrites_of([rewrite("b", made, to("second", "x")), rewrite("a", made, to("first", "x"))], "p")
    assert found.by_name == {"x": Split([("first", 1)])}


def test_a_rule_may_match_several_models() -> None:
    found = rewrites_of([rewrite("a", "", to("m", "x", "y"))], "p")
    assert set(found.by_name) == {"x", "y"}


def test_objects_of_other_pools_and_rules_that_say_nothing_do_not_count() -> None:
    empty: dict[str, Any] = {"targets": []}
    unknown = {"matches": [{"model": {"type": "Prefix", "value": "x"}}], "targets": [{"modelRewrite": "m"}]}
    weightless = {"targets": [{"modelRewrite": "m", "weight": 0}]}
    objects = [rewrite("a", "", empty, unknown, weightless), rewrite("b", "", to("m", "x"), pool="other")]
    assert rewrites_of(objects, "p") == NO_REWRITES


def test_a_name_counts_once_as_the_present_api_group_has_it() -> None:
    def objective(priority: int | None) -> InferenceObjective:
        spec = {"poolRef": {"name": "p"}, "priority": priority}
        return msgspec.convert({"metadata": {"name": "a"}, "spec": spec}, InferenceObjective)

    assert priorities_of([objective(5), objective(7)], "p") == {"a": 5}
    assert priorities_of([objective(None)], "p") == {"a": 0}
