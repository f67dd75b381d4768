"""A file that is no plan is told apart from one, with what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import UserError
from fairlead.tools.plan.plan_file import read_plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no stages"),
        ("- a list", "no stages"),
        ("stages: [{model: a, replicas: [{tp: 1}]}]", "no stages with replicas"),
        ("stages: []", "missing required field"),
        ("stages: [{model: a, share: 1, gpus: 1, replicas: [{count: x, tp: 1, pp: 1}]}]", "Expected `int`"),
        ("stages: [", "expected"),
    ],
)
def test_a_file_that_is_no_plan_says_why(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=f"(?s)plan.yaml: not a plan: .*{said}"):
        read_plan(path)


def test_a_plan_that_is_not_there_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`fairlead plan` writes plans"):
        read_plan(tmp_path / "none.yaml")
