"""From rows to the profile that the planner works on: requests that every model of the cascade answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairlead.cascade.rows import ProfileRow
from fairlead.errors import UserError
from fairlead.tools.plan.routing import Profile

_FEWEST_REQUESTS = 20  # fewer give no p95


def make_profile(rows: Sequence[ProfileRow], models: Sequence[str], source: str) -> Profile:
    """The sample of requests that every one of `models` answered. Raises UserError if these are too few."""
    answers: dict[str, dict[str, ProfileRow]] = {}
    for row in rows:
        answers.setdefault(row.request, {})[row.model] = row
    seen = {row.model for row in rows}
    missing = [model for model in models if model not in seen]
    if missing:
        raise UserError(
            f"{source}: no row of the model {missing[0]}; profile it too, or leave it out of the cascade "
            f"(there are: {', '.join(sorted(seen)) or 'none'})"
        )
    whole = [each for each in answers.values() if all(model in each for model in models)]
    if len(whole) < _FEWEST_REQUESTS:
        raise UserError(
            f"{source}: {len(whole)} of {len(answers)} requests were answered by all of {', '.join(models)}; "
            f"at least {_FEWEST_REQUESTS} are needed: run `fairlead plan profile` again, it continues where it stopped"
        )

    def table(value: Any) -> Any:
        return np.array([[value(each[model]) for model in models] for each in whole], dtype=float)

    return Profile(
        models=tuple(models),
        prompt_tokens=table(lambda row: row.prompt_tokens).max(axis=1),
        output_tokens=table(lambda row: row.output_tokens),
        score=table(lambda row: row.score),
        quality=table(lambda row: row.score if row.quality is None else row.quality),
    )
