"""Kinds of engines: what they declare fits together, and one more is one more file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import fairlead
from fairlead.api import body_limits
from fairlead.core.pool import ANY_MODEL, Pool
from fairlead.dialects import DEFAULT, DIALECTS, KvPublisher, ServerInfo, dialect_called, owner_is, read_models
from fairlead.dialects.models_page import MOST_NAME_CHARACTERS
from fairlead.dialects.sglang import read_info
from fairlead.dialects.vllm import transfers_safely
from tests.core.world import make_endpoint


def test_names_and_owners_and_metrics_are_of_one_dialect_each() -> None:
    dialects = DIALECTS.values()
    assert {dialect.name: dialect for dialect in dialects} == DIALECTS
    assert len({dialect.owner for dialect in dialects}) == len(DIALECTS)
    metrics = [name for dialect in dialects for name in dialect.metrics]
    assert len(set(metrics)) == len(metrics)


def test_an_unknown_name_is_reported_with_the_nearest_and_all_known() -> None:
    with pytest.raises(ValueError, match=r'no kind of engine is called "sglan"; did you mean "sglang".* sglang, vllm'):
        dialect_called("sglan")


@pytest.mark.parametrize(("owner", "name"), [("sglang", "sglang"), ("vllm", "vllm"), ("somebody", DEFAULT)])
def test_an_engine_is_recognised_by_who_owns_its_models(owner: str, name: str) -> None:
    assert owner_is(owner).name == name


def test_requests_that_name_no_model_go_to_the_engines_that_take_them() -> None:
    one, other = make_endpoint("10.0.0.1:1", "m"), make_endpoint("10.0.0.2:1", "m", engine="sglang")
    assert Pool([one, other], {}).available(ANY_MODEL) == [other]
    assert Pool([one], {}).available(ANY_MODEL) == [one]  # its own refusal says more than ours would


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("0.30.0", True),
        ("0.32.1rc1", True),
        ("1.0", True),
        ("0.29.9", False),
        ("0.18.1", False),
        (None, False),
        ("x", False),
    ],
)
def test_transfers_need_a_version_that_survives_a_failed_one(version: str | None, safe: bool) -> None:
    assert transfers_safely(version) is safe


ADAPTERS = {
    "data": [
        {"id": "base", "parent": None, "max_model_len": 2048, "owned_by": "sglang"},
        {"id": "sql", "parent": "base", "max_model_len": None},
        {"id": "tuned", "parent": "meta/origin"},  # which is not served here
        {"id": 7},
        "garbage",
    ]
}


@pytest.mark.parametrize(
    ("engine", "names"), [("vllm", ["base", "sql", "tuned"]), ("sglang", ["base", "base:sql", "tuned"])]
)
def test_a_page_of_models_is_read_as_requests_name_them(engine: str, names: list[str]) -> None:
    cards = read_models(ADAPTERS, DIALECTS[engine])
    assert [card.name for card in cards] == names
    assert [card.parent for card in cards] == [None, "base", None]
    assert [card.max_model_len for card in cards] == [2048, None, None]


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "a\u2028b", "x" * 257, None, 7, ["a"]])
def test_what_no_request_or_header_can_name_is_no_model(name: object) -> None:
    page = {"data": [{"id": name}, {"id": "meta/llama 3.1-\u6a21"}]}
    assert [card.name for card in read_models(page, DIALECTS["vllm"])] == ["meta/llama 3.1-\u6a21"]


def test_a_name_is_as_long_as_a_request_may_write_it() -> None:
    assert MOST_NAME_CHARACTERS == body_limits.MOST_NAME_CHARACTERS


@pytest.mark.parametrize("page", [None, [], {}, {"data": 7}, {"data": [[]]}])
def test_a_page_that_lists_nothing_is_empty(page: object) -> None:
    assert read_models(page, DIALECTS["vllm"]) == ()


KV_EVENTS = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "dp_size": 1, "topic": "kv"}


@pytest.mark.parametrize(
    ("info", "read"),
    [
        ({"version": "0.5.23", "disaggregation_mode": "null", "kv_events": None}, ServerInfo("0.5.23")),
        ({"disaggregation_mode": "prefill"}, ServerInfo(role="prefill")),
        ({"max_queued_requests": 4}, ServerInfo(None, "plain", 4)),
        ({"disable_radix_cache": True}, ServerInfo(caches_prefixes=False)),
        ({"disable_radix_cache": False}, ServerInfo()),
        ({"kv_events": KV_EVENTS}, ServerInfo(kv_events=KvPublisher(5557, None, "kv"))),
        (
            {"kv_events": KV_EVENTS | {"replay_endpoint_port_base": 5558}},
            ServerInfo(kv_events=KvPublisher(5557, 5558, "kv")),
        ),
        ({"kv_events": KV_EVENTS | {"dp_size": 2}}, ServerInfo()),  # a port for each rank
        ({"kv_events": KV_EVENTS | {"endpoint_port_base": 70000}}, ServerInfo()),
        ({"version": 7, "disaggregation_mode": [], "max_queued_requests": True, "kv_events": "x"}, ServerInfo()),
    ],
)
def test_what_an_sglang_says_of_itself_is_read(info: dict[str, object], read: ServerInfo) -> None:
    assert read_info(info) == read


NEW = """
    from fairlead.dialects.dialect import Dialect

    DIALECT = Dialect(
        name="mill",
        title="Mill",
        owner="miller",
        metrics={"mill_requests_at_work": "running", "mill:ground_tokens_total": "generated"},
        rank_label="stone",
        health_path="/turning",
        kv_connectors=frozenset(),
    )
"""
USE = """
    from fairlead.config import ConfigError, parse
    from fairlead.dialects import owner_is
    from fairlead.engines.metrics_text import read_metrics

    POOL = "pool: {endpoints: [{address: '10.0.0.1:1', model: m, engine: mill%s}]}"
    assert parse(POOL % "").pool.endpoints[0].engine == "mill"
    try:
        parse(POOL % ", kv_transfer: {connector: shared}")
    except ConfigError as error:
        print(error)
    page = b'mill_requests_at_work{stone="a"} 3\\nmill_requests_at_work{stone="b"} 4\\nmill:ground_tokens_total 9\\n'
    report = read_metrics(page, 1.0)
    print(owner_is("miller").title, report.running_requests, report.generated_tokens)
"""


def test_a_new_dialect_is_one_new_file(tmp_path: Path) -> None:
    source = Path(fairlead.__file__).parent
    shutil.copytree(source, tmp_path / "fairlead", ignore=shutil.ignore_patterns("__pycache__", "tools"))
    (tmp_path / "fairlead" / "dialects" / "mill.py").write_text(dedent(NEW))
    (tmp_path / "use.py").write_text(dedent(USE))  # beside the package: found before the installed one
    done = subprocess.run(
        [sys.executable, str(tmp_path / "use.py")], capture_output=True, text=True, check=False, timeout=60, env={}
    )
    first, *_, last = done.stdout.splitlines() or [done.stderr]
    assert 'kv_transfer.connector: Mill servers do not pass KV on by "shared"; write no kv_transfer' in first
    assert last == "Mill 7 9"
