"""Which thresholds a plan chooses among."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairlead.tools.plan.routing import candidates
from tests.tools.plan.world import profile


@pytest.mark.parametrize("score", [0.0, 37.5])
def test_a_first_model_that_always_gets_one_score_may_be_accepted_always_or_never(score: float) -> None:
    sample = profile(requests=40, models=2)
    same = replace(sample, score=np.column_stack([np.full(40, score), sample.score[:, 1]]))
    shares = {found.shares[1] for found in candidates(same)}
    assert shares == {0.0, 1.0}
