"""`sessions.store` in the configuration: what is accepted, and that its password is never shown."""

from __future__ import annotations

import pytest

from fairlead.config import Config, ConfigError, parse


def read(store: str) -> Config:
    return parse(f"pool: {{endpoints: [{{address: '127.0.0.1:8000', model: m}}]}}\nsessions: {{store: '{store}'}}\n")


@pytest.mark.parametrize("store", ["memory", "redis://h:6379", "redis://[::1]:6379/2", "rediss://user:p%2Fw@h:1/0"])
def test_memory_and_redis_urls_are_stores(store: str) -> None:
    assert read(store).sessions.store == store


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("disk", "fairlead.yaml:2: sessions.store: is not a session store; write memory, or redis://host:6379/0"),
        ("postgres://:hush@h:1/0", "is not a session store"),
        ("redis://h", '"h" has no port; write host:port, for example h:8000'),
        ("redis://:hush@h:1/x", 'the database "x" is not a number'),
        ("redis://:hush?x@h:1", "a space or one of /?#[] is in the way"),
        ("redis://:hush/0@h:1/0", "%2F"),
        ("redis://", "has no port"),
    ],
)
def test_another_store_is_refused_with_what_to_write_and_without_the_password(store: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(store)
    assert message in str(refused.value)
    assert "hush" not in str(refused.value)


def test_the_password_is_not_in_what_the_configuration_shows_of_itself() -> None:
    config = read("redis://user:hu@sh@h:6379/2")
    assert config.model_dump(mode="json")["sessions"]["store"] == "redis://h:6379/2"
    assert "sh@" not in repr(config) + config.model_dump_json()
