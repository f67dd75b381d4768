"""SGLang's `lora_path` names an adapter beside the model: the request goes, and counts, as one for that adapter."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from fairlead.core.in_flight import InFlight
from fairlead.core.pool import Pool
from fairlead.core.reported import EngineIdentity
from fairlead.core.router import Router
from fairlead.core.splits import Rewrites, Split
from fairlead.extproc.body import Body
from fairlead.extproc.pick import Pick, pick
from fairlead.extproc.request import HttpRequest
from fairlead.extproc.services import Services
from fairlead.policies import build_policy
from tests.core.world import make_endpoint
from tests.extproc.world import chat, services_around

PLAIN, WITH_SQL, VLLM, LARGE = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"

LONG = [{"role": "user", "content": "x" * 4096}]


@pytest.fixture
def services() -> Services:
    """Of `small` two SGLangs, one with the adapter `sql`; of `large` a vLLM with `legal` and an SGLang with `art`."""
    sql = EngineIdentity("0.5.23", ("small", "small:sql"), adapters=("small:sql",))
    legal = EngineIdentity("0.32.0", ("large", "legal"), adapters=("legal",))
    art = EngineIdentity("0.5.23", ("large", "large:art"), adapters=("large:art",))
    endpoints = [
        make_endpoint(PLAIN, "small", engine="sglang"),
        make_endpoint(WITH_SQL, "small", engine="sglang", identity=sql),
        make_endpoint(VLLM, "large", identity=legal),
        make_endpoint(LARGE, "large", engine="sglang", identity=art),
    ]
    pool = Pool(endpoints, {"auto": ["small", "large"]})
    return services_around(Router(pool, build_policy("fairlead", {}), fallbacks=2, rng=Random(0)))


def picked(services: Services, body: Body, path: str = "/v1/chat/completions") -> Pick:
    found = pick(services, HttpRequest(path, {}, b"id", body))
    assert isinstance(found, Pick), found
    return found


def chosen(services: Services, body: bytes, path: str = "/v1/chat/completions") -> tuple[str, str, Any]:
    """The endpoint and the name that it counts under, and what the body says to the engine."""
    found = picked(services, body, path)
    found.in_flight.withdraw(0.0)
    sent = body if found.body is None else bytes(found.body)  # type: ignore[arg-type]
    return found.in_flight.address, found.in_flight.decision.model, json.loads(sent)


def test_it_goes_where_the_adapter_is_listed_and_its_body_stays(services: Services) -> None:
    body = chat("small", lora_path="sql")
    assert {chosen(services, body)[:2] for _ in range(8)} == {(WITH_SQL, "small:sql")}
    assert picked(services, body).body is None


def test_it_takes_a_slot_of_the_adapter(services: Services) -> None:
    endpoint = services.router.pool.by_address[WITH_SQL]
    in_flight: InFlight = picked(services, chat("small", lora_path="sql")).in_flight
    assert in_flight.request.adapter == "small:sql"
    assert endpoint.adapters.waits_for("small:sql") is None


def test_it_shares_its_cached_prefix_with_requests_that_name_the_adapter_as_their_model(services: Services) -> None:
    beside, as_model, plain = (
        picked(services, body).in_flight.request.prefix
        for body in (
            chat("small", messages=LONG, lora_path="sql"),
            chat("small:sql", messages=LONG),
            chat("small", messages=LONG),
        )
    )
    assert beside == as_model
    assert set(beside).isdisjoint(plain)


def test_an_adapter_that_engines_list_by_its_own_name_is_asked_by_that(services: Services) -> None:
    address, model, body = chosen(services, chat("large", lora_path="legal"))
    assert (address, model, body["model"]) == (VLLM, "legal", "legal")


def test_the_adapter_of_another_model_is_none_of_this_one(services: Services) -> None:
    body = chat("large", lora_path="sql")
    address, model, sent = chosen(services, body)
    assert (model, sent) == ("large", json.loads(body))
    assert address in (VLLM, LARGE)


def test_an_adapter_that_is_named_as_the_model_goes_first(services: Services) -> None:
    assert chosen(services, chat("small:sql", lora_path="art"))[:2] == (WITH_SQL, "small:sql")


def test_an_api_without_a_model_reaches_the_adapter_of_the_one_model_that_has_it(services: Services) -> None:
    body = json.dumps({"text": "hello", "lora_path": "sql"}).encode()
    assert chosen(services, body, "/generate") == (WITH_SQL, "small:sql", json.loads(body))


def test_where_the_model_is_rewritten_the_adapter_is_the_new_ones(services: Services) -> None:
    services.rewrites = Rewrites({"chat": Split([("small", 1)])})
    address, model, body = chosen(services, chat("chat", lora_path="sql"))
    assert (address, model, body["model"]) == (WITH_SQL, "small:sql", "small:sql")


def test_an_adapter_that_nobody_lists_is_left_to_the_engine_with_a_cache_of_its_own(services: Services) -> None:
    """Older SGLangs list none of theirs."""
    known = picked(services, chat("small", messages=LONG)).in_flight
    unknown = picked(services, chat("small", messages=LONG, lora_path="new")).in_flight
    assert unknown.decision.model == "small"
    assert unknown.request.adapter == ""
    assert len(unknown.request.prefix) == len(known.request.prefix)
    assert set(unknown.request.prefix).isdisjoint(known.request.prefix)


@pytest.mark.parametrize(
    "value",
    ["null", '""', "[]", '["sql"]', '["sql", null]', "7", "true", '{"sql": 1}', '"' + "s" * 100_000 + '"', '"\\u0000"',
     '"sql\\u0000"', '"\\r\\nx: y"', '"../../etc/passwd"', '":"', '"small:sql"', '"sql" , "lora_path": []',
     "[" * 500 + "]" * 500],
)  # fmt: skip
def test_any_other_value_is_the_engines_to_judge(services: Services, value: str) -> None:
    body = b'{"model": "small", "messages": [{"role": "user", "content": "hi"}], "lora_path": %b}' % value.encode()
    found = picked(services, body)
    assert (found.in_flight.decision.model, found.in_flight.request.adapter, found.body) == ("small", "", None)
