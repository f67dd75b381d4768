"""Which changes of a configuration an Envoy that runs does not learn of."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.config import Config
from fairlead.gateway import bootstrap, outdated_by
from fairlead.gateway.outdated import MADE_OF

TWO = [{"address": "10.0.0.1:8000", "model": "a"}, {"address": "10.0.0.2:8000", "model": "b"}]


def config(**sections: Any) -> Config:
    return Config.model_validate({"pool": {"endpoints": TWO}} | sections)


@pytest.mark.parametrize(
    ("change", "sections"),
    [
        ({"routes": {"auto": ["a", "b"]}}, ["routes"]),
        ({"pool": {"endpoints": [*TWO, {"address": "10.0.0.3:8000", "model": "c"}]}}, ["pool"]),
        ({"gateway": {"paths": ["/v1/files"]}}, ["gateway"]),
        ({"gateway": {"allowed_media_domains": ["images.example.com"]}}, ["gateway"]),
        ({"clients": {"keys": "keys.txt"}}, ["clients"]),
        ({"tenants": {"header": "x-tenant"}}, ["tenants"]),
        ({"listen": {"grpc": "127.0.0.1:9102"}}, ["listen"]),
    ],
    ids=["route", "model", "path", "media", "keys", "tenants", "sidecar"],
)
def test_what_stands_in_the_bootstrap_outdates_it(change: dict[str, Any], sections: list[str]) -> None:
    assert outdated_by(config(), config(**change)) == sections


MORE = [*TWO, {"address": "10.0.0.3:8000", "model": "a"}]


def test_engines_come_and_go_without_a_new_bootstrap() -> None:
    assert outdated_by(config(), config(pool={"endpoints": MORE})) == []


def test_a_static_list_of_engines_is_outdated_by_another_one() -> None:
    static = {"gateway": {"endpoints": "static"}}
    assert outdated_by(config(**static), config(pool={"endpoints": MORE}, **static)) == ["pool"]


def test_what_envoy_does_not_know_outdates_nothing() -> None:
    change = {"policy": {"name": "random"}, "observe": {"interval_ms": 500}, "listen": {"drain_s": 5.0}}
    assert outdated_by(config(), config(**change)) == []


@pytest.mark.parametrize(
    "of_another",
    [
        {"gateway": {"fallbacks": 0}},
        {"gateway": {"fallbacks": 1}, "discovery": {"kubernetes": {"inference_pool": "llm"}}},
    ],
    ids=["one address", "InferencePool"],
)
def test_behind_another_gateway_there_is_no_bootstrap_of_ours(of_another: dict[str, Any]) -> None:
    assert outdated_by(config(**of_another), config(**of_another, routes={"auto": ["a"]})) == []


class Watched(Config):
    """Notes which sections are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in Config.model_fields:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()


def test_a_bootstrap_is_made_of_these_sections_alone() -> None:
    """A section that is read and not compared would change Envoy's bootstrap without a word."""
    cascade = {"cascade": ["a", "b"], "thresholds": [60], "judge": {"function": "judge:score"}}
    sections = {
        "routes": {"auto": ["a", "b"], "judged": cascade},
        "admission": {},
        "tenants": {"header": "x-tenant"},
        "clients": {"keys": "keys.txt"},
    }
    watched = Watched.model_validate({"pool": {"endpoints": TWO}, "gateway": {"remember": "/tmp/pool"}} | sections)
    READ.clear()
    bootstrap(watched)
    assert set(MADE_OF) == READ
    bootstrap(watched, mode="full_duplex")
    assert set(MADE_OF) == READ
