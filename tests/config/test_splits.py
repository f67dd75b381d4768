"""Routes that share requests out by weight."""

from __future__ import annotations

import pytest

from fairlead.config import ConfigError, parse
from fairlead.core.splits import Split
from fairlead.gateway import bootstrap, render

POOL = "pool: {endpoints: [{address: '127.0.0.1:8000', model: a}, {address: '127.0.0.1:8001', model: b}]}\n"


def test_a_split_is_a_route_whose_heaviest_model_is_the_first_without_the_sidecar() -> None:
    config = parse(POOL + "routes: {chat: {split: {a: 5, b: 95}}, auto: [a, b]}\n")
    assert config.splits() == {"chat": Split([("a", 5), ("b", 95)])}
    assert config.models_of_routes() == {"chat": ("b", "a"), "auto": ("a", "b")}
    assert "route:chat" in render(bootstrap(config))


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ("{split: {a: 0}}", "routes.chat.split.a: must be 1 or more"),
        ("{split: {}}", "routes.chat.split: needs 1 or more entries"),
        ("{split: {c: 1}}", 'routes.chat.split.c: no endpoint serves "c"'),
        ("{split: {a: 1}, thresholds: [1]}", "routes.chat.thresholds: cannot stand together with the other keys here"),
    ],
)
def test_a_mistake_is_reported_at_its_key(route: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(POOL + f"routes: {{chat: {route}}}\n")
    assert message in str(error.value)


def test_the_models_of_a_split_need_no_capability_files_of_all() -> None:
    """Nothing compares them."""
    models = "], models: {a: {capability: a.json}}}"
    assert parse(POOL.replace("]}", models) + "routes: {chat: {split: {a: 1, b: 1}}}\n").splits()
