"""A route may name adapters besides models: each is a choice of its own, though one engine may serve several."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from fairlead.core.endpoint import Endpoint
from fairlead.core.health import DRAINING
from fairlead.core.in_flight import InFlight
from fairlead.core.objective import Slo
from fairlead.core.pool import FEW, Pool
from fairlead.core.reported import EngineIdentity
from fairlead.core.router import Router
from fairlead.policies import build_policy
from tests.core.world import always, make_endpoint, request

LISTS_SQL = EngineIdentity(models=("base", "sql"), adapters=("sql",))
ROUTES = {"auto": ["base", "sql"], "adapters": ["sql"]}


def engine(address: str = "a:1", **fields: Any) -> Endpoint:
    return make_endpoint(address, "base", **{"identity": LISTS_SQL} | fields)


def router(*endpoints: Endpoint) -> Router:
    return Router(Pool(endpoints, ROUTES, ["base", "sql"]), build_policy("fairlead", {}), fallbacks=2, rng=Random(0))


def admitted(where: Router, model: str = "auto", **facts: Any) -> InFlight:
    found = where.admit(request(model, **facts))
    assert isinstance(found, InFlight)
    return found


@pytest.mark.parametrize("count", [1, FEW + 1])
def test_the_more_capable_adapter_of_an_engine_is_asked_by_its_name(count: int) -> None:
    capable = {"capability": always(0.2), "capabilities": {"sql": always(0.9)}}
    where = router(*(engine(f"a:{1 + number}", **capable) for number in range(count)))
    found = admitted(where)
    assert (found.decision.model, found.request.adapter) == ("sql", "sql")


def test_an_adapter_that_must_be_loaded_costs_more_than_its_equally_capable_model() -> None:
    assert admitted(router(engine())).decision.model == "base"


def test_a_route_of_adapters_alone_goes_where_they_are_listed() -> None:
    where = router(make_endpoint("a:1", "base"), engine("b:1"))
    assert {admitted(where, "adapters").address for _ in range(4)} == {"b:1"}


def near_and_far(**fields: Any) -> Router:
    """The engine of the adapter is far cheaper than that of the model."""
    alone = EngineIdentity(models=("other", "sql"), adapters=("sql",))
    base = make_endpoint("a:1", "base", rtt_ms=900.0, identity=EngineIdentity(models=("base",)))
    return router(base, make_endpoint("b:1", "other", **({"identity": alone} | fields)))


def test_a_model_of_which_only_draining_engines_are_left_is_not_chosen() -> None:
    where = near_and_far()
    assert admitted(where).decision.addresses == ("b:1",)
    where.planner.draining.add("b:1")
    assert admitted(where).decision.addresses == ("a:1",)
    where.planner.draining.add("a:1")
    assert admitted(where).decision.addresses == ("b:1",)


@pytest.mark.parametrize("refuses", [False, True])
def test_of_a_routes_models_one_is_chosen_that_should_meet_the_objective(refuses: bool) -> None:
    where = near_and_far(decode_ms_per_token=22.0)
    assert admitted(where).decision.addresses == ("b:1",)
    found = where.admit(msgspec.structs.replace(request("auto"), slo=Slo(tpot_ms=21.0, refuses=refuses)))
    assert isinstance(found, InFlight)
    assert found.decision.addresses == ("a:1",)


@pytest.mark.parametrize("may_split", [True, False])
def test_what_no_pair_of_a_routes_model_can_answer_goes_to_its_other_one(may_split: bool) -> None:
    pair: dict[str, Any] = {"engine": "sglang", "kv_connector": "sglang", "identity": EngineIdentity(models=("base",))}
    prefill = make_endpoint("a:1", "base", role="prefill", **pair)
    prefill.health.withhold(DRAINING, active=may_split)
    alone = EngineIdentity(models=("other", "sql"), adapters=("sql",))
    adapter = make_endpoint("c:1", "other", rtt_ms=900.0, identity=alone)
    where = router(prefill, make_endpoint("b:1", "base", role="decode", **pair), adapter)
    found = where.admit(msgspec.structs.replace(request("auto"), may_split=may_split))
    assert isinstance(found, InFlight)
    assert found.address == "c:1"


def test_an_adapter_that_answered_wrongly_is_not_its_model() -> None:
    where = router(engine())
    assert admitted(where, attempted=["base"]).decision.model == "sql"
    assert admitted(where, attempted=["sql", "base", "sql"]).decision.model == "base"


def test_what_an_adapter_cached_is_found_only_under_its_name() -> None:
    where = router(engine(), engine("b:1"))
    asked = msgspec.structs.replace(request("adapters"), prefix=(1, 2, 3), block_tokens=300.0)
    first = where.admit(asked)
    assert isinstance(first, InFlight)
    first.sent(first.request, 0.0)
    first.served(first.address, 200, 0.1, in_one_piece=True)
    first.ended(0.2)
    again, of_base = where.admit(asked), where.admit(msgspec.structs.replace(asked, model="base"))
    assert isinstance(again, InFlight)
    assert isinstance(of_base, InFlight)
    assert (again.address, again.decision.cached_tokens) == (first.address, 900)
    assert of_base.decision.cached_tokens == 0


def test_an_adapter_that_the_configuration_names_is_served_once_an_engine_lists_it() -> None:
    assert admitted(router(engine()), "sql").decision.model == "sql"


def test_an_adapter_with_the_name_of_a_model_does_not_take_its_requests() -> None:
    where = router(engine(), make_endpoint("b:1", "sql"))
    assert {admitted(where, "sql").address for _ in range(4)} == {"b:1"}


def test_an_adapter_that_is_unloaded_leaves_the_route_to_its_models() -> None:
    endpoint = engine(capability=always(0.2), capabilities={"sql": always(0.9)})
    where = router(endpoint)
    assert admitted(where).decision.model == "sql"
    endpoint.identified(EngineIdentity(models=("base",)))
    where.pool = where.pool.renewed()
    assert admitted(where).decision.model == "base"
