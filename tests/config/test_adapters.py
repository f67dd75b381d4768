"""Adapters that the configuration names: in routes, with a capability of their own, and to Envoy."""

from __future__ import annotations

import pytest

from fairlead.config import ConfigError, parse
from fairlead.gateway import bootstrap, render

POOL = "pool: {endpoints: [{address: '127.0.0.1:8000', model: base}], models: {sql: %s}}\n"


def test_a_route_may_name_an_adapter_that_the_pool_names() -> None:
    config = parse(POOL % "{adapter_of: base}" + "routes: {auto: [base, sql], chat: {split: {sql: 1, base: 3}}}\n")
    assert config.models_of_routes() == {"auto": ("base", "sql"), "chat": ("base", "sql")}
    assert "model:sql" in render(bootstrap(config))


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ("{adapter_of: sql}", 'pool.models.sql.adapter_of: "sql" is no model but an adapter'),
        ("{adapter_of: bse}", 'pool.models.sql.adapter_of: no endpoint serves "bse"; did you mean "base"?'),
        ("{adapter_of: base, decode_ms_per_token: 1}", "pool.models.sql.decode_ms_per_token: an adapter has this of"),
    ],
)
def test_a_mistake_is_reported_at_its_key(adapter: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(POOL % adapter)
    assert message in str(error.value)


def test_an_adapter_without_a_capability_of_its_own_counts_as_its_model() -> None:
    models = "{adapter_of: base}, base: {capability: q.json}"
    assert parse(POOL % models + "routes: {auto: [base, sql]}\n").capability_of("sql") == "q.json"
