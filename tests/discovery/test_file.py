"""A file that lists endpoints: what may stand in it, and what happens when it is replaced, broken or gone."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from fairlead.discovery import DiscoveredEndpoint, SourceStatus, UnusableError
from fairlead.discovery.file import FileSource, read_endpoints
from tests.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engines.yaml"


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_an_entry_is_an_address_or_a_mapping(path: Path) -> None:
    replace(path, "- 10.0.0.1:8000\n- {address: '[::1]:8000', models: [a, b], engine: sglang, draining: true}\n")
    assert read_endpoints(path) == (
        DiscoveredEndpoint("10.0.0.1:8000"),
        DiscoveredEndpoint("[::1]:8000", models=("a", "b"), engine="sglang", draining=True),
    )


def test_an_address_is_as_envoy_writes_it_which_says_in_this_form_who_served(path: Path) -> None:
    replace(path, "- '[FD00:0::1]:08000'\n- '[::ffff:10.0.0.1]:1'\n")
    assert [each.address for each in read_endpoints(path)] == ["[fd00::1]:8000", "[::ffff:10.0.0.1]:1"]


def test_an_engine_of_another_accelerator_has_times_of_its_own(path: Path) -> None:
    replace(path, "- {address: '10.0.0.1:8000', prefill_ms_per_token: 0.21, decode_ms_per_token: 7}\n")
    assert read_endpoints(path) == (
        DiscoveredEndpoint("10.0.0.1:8000", prefill_ms_per_token=0.21, decode_ms_per_token=7.0),
    )


def test_json_is_read_too(path: Path) -> None:
    replace(path, '[{"address": "10.0.0.1:8000", "labels": {"zone": "a"}}]')
    assert read_endpoints(path) == (DiscoveredEndpoint("10.0.0.1:8000", labels={"zone": "a"}),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a list of endpoints; write [] for none"),
        ("pool: {}", "is not a list of endpoints; write [] for none"),
        ("- [", "is neither JSON nor YAML"),
        ("- 10.0.0.1", 'engines.yaml: [0]: "10.0.0.1" has no port; write host:port, for example 10.0.0.1:8000'),
        ("- {address: 'a:1', engine: vlm}", '[0]: no kind of engine is called "vlm"; did you mean "vllm"?'),
        ("- {address: 'a:1', modles: [x]}", "[0]: Object contains unknown field `modles`"),
        ("- 10.0.0.1:8000\n- 10.0.0.1:8000", '[1]: "10.0.0.1:8000" is listed twice; remove one'),
        ("- {address: 'a:1', kv_connector: sglang}", "[0]: role: is required with kv_connector sglang"),
        ("- {address: 'a:1', role: prefill, kv_connector: sglang}", "[0]: bootstrap: is required with"),
        ("- {address: 'a:1', bootstrap: b}", '"b" has no port'),
        ("- {address: 'a:1', decode_ms_per_token: 0}", "[0]: Expected `float` > 0.0"),
        ("- {address: 'a:1', decode_ms_per_token: .inf}", "[0]: Expected `float` <= 1000000.0"),
        ("- 7", "[0]: Expected `object`, got `int`"),
        ("- vllm-0:8000", '[0]: "vllm-0" is not an IP address; write one, or put the name under pool.endpoints or'),
        ("- '[fe80::1%eth0]:8000'", '[0]: "fe80::1%eth0" is not an IP address'),
        ("- {address: '10.0.0.1:1', models: ['']}", "[0]: '' cannot be the name of a model"),
        ('- {address: "10.0.0.1:1", models: ["a\\nb"]}', "[0]: 'a\\nb' cannot be the name of a model"),
        ("- '[::1]:8000'\n- '[0:0::1]:8000'", '[1]: "[::1]:8000" is listed twice; remove one'),
        ("- &a [*a]", "[0]: "),
        pytest.param("[" * 100_000, "is nested too deep to be a list of endpoints", id="deep"),
        pytest.param("- " + "[" * 1_000_000, "is nested too deep to be a list of endpoints", id="deep YAML"),
        pytest.param("- a:1\n" * 10_001, "lists 10001 endpoints; 10000 at most are followed", id="many"),
    ],
)
def test_what_is_wrong_is_said(path: Path, text: str, reason: str) -> None:
    replace(path, text)
    with pytest.raises(UnusableError) as caught:
        read_endpoints(path)
    assert reason in str(caught.value)


async def test_a_new_set_comes_when_the_file_is_replaced_and_none_while_it_is_broken_or_gone(path: Path) -> None:
    replace(path, "- 10.0.0.1:8000\n")
    status = SourceStatus("file", asyncio.get_running_loop().time)
    async with asyncio.timeout(60), aclosing(FileSource(path).sets(status)) as sets:  # type: ignore[type-var]
        assert [e.address for e in await anext(sets)] == ["10.0.0.1:8000"]
        coming = asyncio.ensure_future(anext(sets))
        replace(path, "- 10.0.0.1\n")
        await until(lambda: status.error)
        path.unlink()  # noqa: ASYNC240 - a local file
        await until(lambda: "cannot be read" in status.error)
        assert not coming.done()
        replace(path, "[]")
        assert await coming == ()


async def test_what_is_no_file_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    status = SourceStatus("file", asyncio.get_running_loop().time)
    async with asyncio.timeout(60), aclosing(FileSource(path).sets(status)) as sets:  # type: ignore[type-var]
        coming = asyncio.ensure_future(anext(sets))
        await until(lambda: "is not a file" in status.error)
        replace(path, "- 10.0.0.1:8000\n")
        assert [e.address for e in await coming] == ["10.0.0.1:8000"]
