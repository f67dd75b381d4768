"""One configuration: what is accepted, and the sentence for what is not."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairlead.addresses import host_and_port
from fairlead.config import ConfigError, load, parse

DESIGN = """
listen: {grpc: 127.0.0.1:9002, admin: 127.0.0.1:9003}
gateway: {listen: 127.0.0.1:8080, fallbacks: 2}
pool:
  endpoints:
    - {address: 127.0.0.1:8001, model: granite-3.1-2b, engine: vllm, region: us-east}
    - {address: 127.0.0.1:8002, model: phi-3-mini}
  models:
    granite-3.1-2b: {capability: models/kv-lookup.json, prefill_ms_per_token: 0.05, decode_ms_per_token: 12, max_model_len: 131072}
    phi-3-mini: {capability: models/kv-lookup.json}
routes:
  auto: [granite-3.1-2b, phi-3-mini]
policy: {name: fairlead}
"""  # noqa: E501
MINIMAL = "pool: {endpoints: [{address: '127.0.0.1:8000', model: m}]}\n"


def test_a_full_configuration_is_read() -> None:
    config = parse(DESIGN)
    assert config.routes == {"auto": ("granite-3.1-2b", "phi-3-mini")}
    assert config.model("granite-3.1-2b").prefill_ms_per_token == 0.05


def test_an_empty_migration_section_turns_moving_on() -> None:
    assert parse(MINIMAL).migration is None
    config = parse(MINIMAL.replace("m}", "m, kv_transfer: {connector: shared}}") + "migration: {}\n")
    assert config.migration is not None
    assert config.pool.endpoints[0].kv_transfer is not None


def test_context_reuse_is_off_until_a_route_a_model_or_all_others_are_named() -> None:
    assert parse(MINIMAL).reuse == {}
    config = parse(MINIMAL + "reuse: {m: {always: [order]}, '*': {on_request: [order, dedup], formats: [markdown]}}\n")
    assert config.reuse["m"].formats == ("xml", "numbered", "json")
    assert config.reuse["*"].on_request == ("order", "dedup")


def test_one_endpoint_is_enough() -> None:
    config = parse(MINIMAL)
    assert (config.policy.name, config.listen.admin, config.model("m").capability) == (
        "fairlead",
        "127.0.0.1:9003",
        None,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml:1: the file must be a mapping"),
        ("pool: [", "f.yaml:1: not YAML"),
        (MINIMAL + "polcy: {name: laar}\n", "f.yaml:2: polcy: unknown key"),
        (MINIMAL + "reuse:\n  x: {always: [order]}\n", 'f.yaml:3: reuse.x: "x" is no route and no served model'),
        (MINIMAL + "reuse:\n  m: {always: [sort]}\n", "f.yaml:3: reuse.m.always[0]"),
        (MINIMAL + "policy:\n  name: lar\n", 'f.yaml:3: policy.name: no policy is called "lar"; did you mean "laar"?'),
        (MINIMAL + "policy: {name: xyzzy}\n", 'no policy is called "xyzzy". Known names'),
        (MINIMAL + "policy: laar\n", "f.yaml:2: policy: must be a mapping with the policy's name; write {name: laar}"),
        (MINIMAL + "policy:\n  name: laar\n  alfa: 1\n",
         'f.yaml:4: policy.alfa: policy laar: no parameter is called "alfa"; its parameters are: alpha=0.7'),
        (MINIMAL + "policy: {name: laar, alpha: x}\n", "policy.alpha: policy laar: alpha must be a number, not text"),
        (MINIMAL + "policy: {name: fairlead, tie_ms: -1}\n", "policy fairlead: tie_ms must be a number >= 0"),
        (MINIMAL + "routes:\n  auto: [m, nobody]\n",
         'f.yaml:3: routes.auto[1]: no endpoint serves "nobody"; served are: m'),
        (MINIMAL + "routes: {m: [m]}\n", 'f.yaml:2: routes.m: "m" is also a served model'),
        (MINIMAL + "routes: {auto: []}\n", "f.yaml:2: routes.auto: the route has no model"),
        (MINIMAL + "routes: {auto: m}\n", 'f.yaml:2: routes.auto: must be a list, for example [a, b], not "m"'),
        (MINIMAL.replace("m}", "m, kv_transfer: {connector: mooncake}}"),
         "f.yaml:1: pool.endpoints[0].kv_transfer.bootstrap: is required with mooncake"),
        (MINIMAL.replace("m}", "m, engine: sglang, kv_transfer: {connector: nixl}}"),
         'f.yaml:1: pool.endpoints[0].kv_transfer.connector: SGLang servers do not pass KV on by "nixl"; '
         "write sglang, shared"),
        (MINIMAL.replace("m}", "m, engine: sglang, kv_transfer: {connector: sglang}}"),
         "f.yaml:1: pool.endpoints[0].role: is required with kv_transfer sglang: write that of --disaggregation-mode"),
        (MINIMAL.replace("m}", "m, engine: sglang, role: prefill, kv_transfer: {connector: sglang}}"),
         "f.yaml:1: pool.endpoints[0].kv_transfer.bootstrap: is required with sglang: host and"),
        (MINIMAL + "policy: {name: lpwl}\ntuner:\n  mode: live\n",
         'f.yaml:4: tuner.mode: policy "lpwl" has no weights to tune; tunable are: fairlead, gorgo'),
        (MINIMAL + "policy: {name: fairlead, queue_weight: 9}\ntuner: {mode: shadow}\n",
         "f.yaml:2: policy.queue_weight: queue_weight is outside 0.25 to 4, the bounds of the tuner"),
        (MINIMAL + "decisions: {}\n", "f.yaml:2: decisions.path: is required"),
        (MINIMAL + "decisions: {path: log, sample: 0}\n", "f.yaml:2: decisions.sample: must be more than 0, not 0"),
        (MINIMAL + "tracing: {endpoint: 'otlp://user:hush@c:4318'}\n",
         "f.yaml:2: tracing.endpoint: is not a collector; write its URL for OTLP over HTTP"),
        (MINIMAL + "tuner: {mode: on}\n", "f.yaml:2: tuner.mode: must be off, shadow or live, not true"),
        (MINIMAL + "migration: {hot_ratio: -1}\n", "f.yaml:2: migration.hot_ratio: must be 1 or more, not -1"),
        (MINIMAL + "migration: {hot_ratio: 0.5}\n", "f.yaml:2: migration.hot_ratio: must be 1 or more, not 0.5"),
        (MINIMAL + "gateway: {fallbacks: '2'}\n", 'f.yaml:2: gateway.fallbacks: must be a whole number, not "2"'),
        (MINIMAL + "prefixes: {ttl: 1e3}\n",
         'f.yaml:2: prefixes.ttl: must be a number, not "1e3", which YAML reads as text; write 1000'),
        (MINIMAL + "prefixes: {ttl: 5e-2}\n", 'not "5e-2", which YAML reads as text; write 0.05'),
        (MINIMAL + "prefixes: {max_bytes: 1e9}\n", 'not "1e9", which YAML reads as text; write 1000000000'),
        (MINIMAL + "prefixes: {max_bytes: 1e99999999}\n", 'must be a whole number, not "1e99999999"'),
        (MINIMAL + "gateway: {fallbacks: -1}\n", "gateway.fallbacks: must be 0 or more, not -1"),
        (
            MINIMAL + "gateway: {allowed_media_domains: ['https://images.example.com']}\n",
            'gateway.allowed_media_domains[0]: "https://images.example.com" is not a domain; write one like '
            "images.example.com, without scheme and port, or *",
        ),
        (MINIMAL + "gateway: {allowed_media_domains: ['*.example.com']}\n", '"*.example.com" is not a domain'),
        (MINIMAL + "gateway: {allowed_media_domains: ['h:80']}\n", '"h:80" is not a domain'),
        (MINIMAL + "gateway: {allowed_media_domains: ['']}\n", '"" is not a domain'),
        (MINIMAL + "listen: {grpc: 'unix:sock'}\n", "is not an absolute socket path"),
        (MINIMAL + f"listen: {{grpc: 'unix:/{'x' * 107}'}}\n",
         "f.yaml:2: listen.grpc: a socket's path may have 107 bytes, this one has 108; write a shorter one"),
        (MINIMAL + "listen: {admin_hosts: [ok, 'http://fairlead.prod.svc']}\n",
         'f.yaml:2: listen.admin_hosts[1]: "http://fairlead.prod.svc" is not a host name alone, and is never asked '
         "for; write fairlead.prod.svc"),
        (MINIMAL + "listen: {admin_hosts: ['fairlead:9003']}\n", "never asked for; write fairlead"),
        (MINIMAL + "listen: {admin_hosts: ['*.svc']}\n", "never asked for; write fairlead.prod.svc"),
        (MINIMAL + "listen:\n  tls: {certificate: a.pem}\n", "f.yaml:3: listen.tls.key: is required: the path"),
        (MINIMAL + "listen:\n  tls: {}\n", "f.yaml:3: listen.tls.certificate: is required: the path of a file in PEM"),
        (MINIMAL + "listen:\n  tls: {certificate: a, key: b, self_signed: true}\n",
         "f.yaml:3: listen.tls.self_signed: remove this, or the certificate and its key"),
        (MINIMAL + "listen:\n  server: grpcio\n  tls: {self_signed: true}\n",
         "f.yaml:4: listen.tls: only the native server has TLS; remove this, or server: grpcio"),
        (MINIMAL + "listen: {server: nginx}\n", "f.yaml:2: listen.server: must be native or grpcio, not \"nginx\""),
        ("pool: {endpoints: []}\n", "f.yaml:1: pool.endpoints: needs 1 or more entries"),
        ("pool:\n", "f.yaml:1: pool: is empty; write something after the colon, or remove the key"),
        (MINIMAL + "listen: {admin: ':9003'}\n",
         '":9003" has no host; write host:port, for example 127.0.0.1:9003'),
        (MINIMAL + "sessions: {headers: [x session]}\n", 'f.yaml:2: sessions.headers[0]: "x session" is not the name'),
        (MINIMAL + "tenants: {header: ':path'}\n", '":path" is not the name of a header'),
        ("pool: {endpoints: [{address: '127.0.0.1:8000'}]}\n", "f.yaml:1: pool.endpoints[0].model: is required"),
        ("pool:\n  endpoints:\n    - address: 127.0.0.1\n      model: m\n",
         'f.yaml:3: pool.endpoints[0].address: "127.0.0.1" has no port; write host:port, for example 127.0.0.1:8000'),
        ("pool:\n  endpoints:\n    - {address: 'a:1', model: m}\n    - {address: 'a:1', model: n}\n",
         'f.yaml:4: pool.endpoints[1].address: "a:1" is already endpoints[0]'),
        ("pool: {endpoints: [{address: 'http://h:1/', model: m}]}\n",
         '"http://h:1/" is a URL; write host:port, for example h:1'),
        ("pool: {endpoints: [{address: '::1:80', model: m}]}\n", "write [::1]:"),
        ("pool: {endpoints: [{address: 'a:99999', model: m}]}\n", '"99999" is not a port'),
        (MINIMAL + "pool: {}\n", 'f.yaml:2: pool: the key "pool" is written twice'),
        (MINIMAL + "routes:\n  a: [m]\n  a: [m]\n", 'f.yaml:4: routes.a: the key "a" is written twice'),
        (MINIMAL + "x: \0\n", "f.yaml:2: not YAML: the character U+0000 may not stand in a file; remove it"),
        (MINIMAL + "x: " + "[" * 2000 + "]" * 2000, "f.yaml:1: lists and mappings are nested over 32 deep"),
        (MINIMAL + "x: &x [*x]\n", "f.yaml:2: x[0][0][0]: lists and mappings are nested over 32 deep"),
        ("a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
         + "".join(f"{name}: &{name} [{', '.join(['*' + last] * 10)}]\n" for last, name in pairwise("abcdefghi")),
         "f.yaml:1: e: aliases repeat over 100000 values; use fewer"),
        ("a: &a {k: 1}\n"
         + "".join(f"{name}: &{name} {{<<: [{', '.join(['*' + last] * 10)}]}}\n"
                   for last, name in pairwise("abcdefghi")),
         "f.yaml:1: f: aliases repeat over 100000 values; use fewer"),
        (MINIMAL + "? [a, b]\n: 1\n", "f.yaml:2: a list or a mapping stands where a key must be; write key: value"),
        (MINIMAL + "---\n" + MINIMAL, "f.yaml:2: a second document begins; write one, without ---"),
        (MINIMAL + "on: 1\n", 'f.yaml:2: on: the key is not read as text; write "on"'),
        (MINIMAL + "1: 2\n", "f.yaml:2: 1: a key must be text; put it in quotes"),
        (MINIMAL + "listen: {drain_s: 2026-02-31}\n", "not YAML: day"),
        ("pool: {endpoints: [{address: 'a:1', model: m}], tls: {ca: /a, server_name: a..b}}",
         'f.yaml:1: pool.tls.server_name: "a..b" is not a host name; write one like engines.example.com'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported_with_its_line_its_path_and_what_to_change(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize("address", ["http://user:hush@h:1", "user:hush@h:1", "hush@h", "user:hush@[::1]:1"])
def test_a_password_before_an_engines_address_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"pool: {{endpoints: [{{address: '{address}', model: m}}]}}\n", "f.yaml")
    assert "f.yaml:1: pool.endpoints[0].address: has an @, and" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_names_and_addresses_by_which_the_admin_port_is_asked_are_taken() -> None:
    hosts = ("fairlead", "fairlead.prod.svc.", "sidecar_1", "10.0.0.1", "::1", "[::1]", "bücher.example")
    assert parse(f"{MINIMAL}listen: {{admin_hosts: {json.dumps(hosts)}}}\n").listen.admin_hosts == hosts


def test_a_sockets_path_may_be_as_long_as_linux_takes_it() -> None:
    grpc = f"unix:/{'x' * 106}"
    assert parse(f"{MINIMAL}listen: {{grpc: '{grpc}'}}\n").listen.grpc == grpc


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(MINIMAL + "a: 1\nb: 2\n", "f.yaml")
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == ["a", "b"]


def test_a_wrong_endpoint_is_one_mistake_and_leaves_the_pool_not_empty() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("pool:\n  endpoints:\n    - {address: nowhere, model: m}\n", "f.yaml")
    assert str(caught.value) == (
        'f.yaml:3: pool.endpoints[0].address: "nowhere" has no port; write host:port, for example nowhere:8000'
    )


def test_a_misspelt_key_is_reported_with_what_it_may_have_been_and_what_else_is_known_there() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(MINIMAL + "observe: {intervall_ms: 5}\n", "f.yaml")
    reported = str(caught.value)
    assert reported.startswith('f.yaml:2: observe.intervall_ms: unknown key; did you mean "interval_ms"? Known keys: ')
    assert "rtt_alpha" in reported
    assert "listen" not in reported


@pytest.mark.parametrize(
    ("observe", "place"),
    [("{interval_ms: 5000}", "interval_ms"), ("{interval_ms: 500, stale_ms: 499}", "stale_ms")],
    ids=["default", "written"],
)
def test_reports_that_would_be_stale_before_they_are_read_again_are_refused(observe: str, place: str) -> None:
    with pytest.raises(ConfigError, match=rf"f\.yaml:2: observe\.{place}: numbers are read every .*; write a stale_ms"):
        parse(MINIMAL + f"observe: {observe}\n", "f.yaml")
    parse(MINIMAL + "observe: {interval_ms: 500, stale_ms: 500}\n")


def test_reports_that_are_read_too_rarely_for_the_alert_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"observe\.interval_ms: must be 60000 or less, not 60001"):
        parse(MINIMAL + "observe: {interval_ms: 60001, stale_ms: 90000}\n", "f.yaml")


def test_keys_of_a_merged_mapping_are_where_they_were_written() -> None:
    text = "pool:\n  endpoints:\n    - &first\n      address: '127.0.0.1:1'\n      model: ''\n    - <<: *first\n"
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    assert str(caught.value).splitlines() == [
        "f.yaml:5: pool.endpoints[0].model: is empty; write a text",
        "f.yaml:5: pool.endpoints[1].model: is empty; write a text",
    ]


def test_a_missing_file_and_a_binary_one_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=":1: is not UTF-8 text"):
        load(tmp_path / "binary")


@given(st.text(max_size=60))
def test_any_address_is_split_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        host, port = host_and_port(text)
        assert host
        assert 0 < port < 65536


@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_any_yaml_is_taken_or_refused_with_a_sentence(value: object) -> None:
    with pytest.raises(ConfigError):
        parse(yaml.safe_dump({"pool": value}))


def test_a_bare_off_is_a_mode_of_the_tuner_though_yaml_reads_it_as_false() -> None:
    assert parse(MINIMAL + "tuner: {mode: off}\n").tuner.mode == "off"
