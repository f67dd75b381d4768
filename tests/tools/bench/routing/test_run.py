from __future__ import annotations

import pytest

from fairlead.tools.bench.routing.agents import NotMeasuredError, ask_all, read_answer
from fairlead.tools.bench.routing.pool import MODEL, configuration
from fairlead.tools.bench.routing.run import order
from fairlead.tools.bench.routing.sessions import AGENTS, make_sessions
from fairlead.tools.simulate.server import EngineOptions, running_engine


def test_each_repeat_begins_with_another_policy_and_has_all_of_them() -> None:
    policies = ["a", "b", "c", "d", "e"]
    orders = [order(policies, repeat, 3) for repeat in range(3)]

    assert len({first for first, *_ in orders}) == 3
    assert all(sorted(each) == policies for each in orders)


def test_policies_differ_in_nothing_but_their_name() -> None:
    one, other = (configuration(["127.0.0.1:1"], policy) for policy in ("fairlead", "lmetric"))

    assert one.pop("policy") == {"name": "fairlead"}
    assert other.pop("policy") == {"name": "lmetric"}
    assert one == other


def test_an_answer_that_was_cut_is_not_measured() -> None:
    with pytest.raises(NotMeasuredError, match="without its usage"):
        read_answer(b'data: {"choices":[{"delta":{"content":"the"}}]}\n\n')


async def test_a_request_that_passed_without_the_sidecar_is_not_measured() -> None:
    sessions = make_sessions(AGENTS, 1, "0")
    async with running_engine(EngineOptions(model=MODEL, time_scale=50.0)) as engine:
        with pytest.raises(NotMeasuredError, match="status 200 without the sidecar's advice"):
            await ask_all(f"http://{engine.address}", MODEL, sessions, clients=1)
