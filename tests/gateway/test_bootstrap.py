"""What `bootstrap` writes, judged by Envoy itself."""

from __future__ import annotations

import string
from typing import Any

import pytest
import yaml
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fairlead.addresses import host_and_port
from fairlead.api import headers
from fairlead.config import Config
from fairlead.errors import UserError
from fairlead.gateway import Mode, bootstrap, comment, render, validate


def config(*addresses: str, grpc: str = "127.0.0.1:9002", listen: str = "127.0.0.1:8080", **gateway: Any) -> Config:
    return Config.model_validate(
        {
            "listen": {"grpc": grpc},
            "gateway": {"listen": listen, "endpoints": "static", **gateway},
            "pool": {"endpoints": [{"address": address, "model": "m"} for address in addresses]},
        }
    )


ACCEPTED = {
    "followed": config("127.0.0.1:8001", "vllm-0.vllm:8000", endpoints="eds"),
    "one engine": config("127.0.0.1:8001"),
    "many engines": config(*(f"10.0.0.{host}:8000" for host in range(1, 65))),
    "unix socket": config("127.0.0.1:8001", grpc="unix:/run/fairlead/fairlead.sock"),
    "ipv6": config("[::1]:8001", "[2001:db8::7]:8000", grpc="[::1]:9002", listen="[::]:8080"),
    "names": config("vllm-0.vllm:8000", "10.0.0.1:8000", grpc="fairlead.default.svc:9002"),
    "no fallbacks": config("127.0.0.1:8001", "127.0.0.1:8002", fallbacks=0),
    "small bodies": config("127.0.0.1:8001", max_body_bytes=1),
    "large bodies": config("127.0.0.1:8001", max_body_bytes=2**31 - 1),
    "little memory": config("127.0.0.1:8001", memory_bytes=128 << 20),
    "slow processor": config("127.0.0.1:8001", processor_timeout_ms=3_600_000),
}


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_envoy_accepts(name: str, mode: Mode) -> None:
    validate(bootstrap(ACCEPTED[name], mode=mode))


def test_names_are_looked_up_and_addresses_are_not() -> None:
    def discovery(tree: dict[str, Any]) -> list[str]:
        return [cluster["type"] for cluster in tree["static_resources"]["clusters"]]

    assert discovery(bootstrap(ACCEPTED["names"])) == ["STRICT_DNS", "STRICT_DNS"]
    assert discovery(bootstrap(ACCEPTED["ipv6"])) == ["STATIC", "STATIC"]
    assert discovery(bootstrap(ACCEPTED["unix socket"])) == ["STATIC", "STATIC"]


def test_by_default_envoy_follows_the_pool_that_the_sidecar_knows() -> None:
    document = {"pool": {"endpoints": [{"address": f"vllm-{name}:8000", "model": name} for name in "ab"]}}
    clusters = bootstrap(Config.model_validate(document))["static_resources"]["clusters"]
    followed = {each["name"]: each for each in clusters if each.get("type") == "EDS"}
    assert set(followed) == {"engines", "followed:model:a", "followed:model:b"}
    for cluster in followed.values():
        assert cluster["ignore_health_on_host_removal"]
        assert cluster["eds_cluster_config"]["eds_config"]["initial_fetch_timeout"] == "1.000s"
        assert "load_assignment" not in cluster


def test_engines_that_the_configuration_lists_are_the_last_resort_of_an_envoy_that_follows_the_sidecar() -> None:
    document = {
        "pool": {"endpoints": [{"address": f"10.0.0.{n}:8000", "model": name} for n, name in enumerate("ab", 1)]},
        "routes": {"auto": ["b", "a"]},
    }
    clusters = bootstrap(Config.model_validate(document))["static_resources"]["clusters"]
    found = {
        each["name"]: each["cluster_type"]["typed_config"]["clusters"] for each in clusters if "cluster_type" in each
    }
    assert found == {
        "model:a": ["followed:model:a", "listed:model:a"],
        "model:b": ["followed:model:b", "listed:model:b"],
        "route:auto": ["followed:model:b", "followed:model:a", "listed:model:b", "listed:model:a"],
        "blind": ["engines", "listed:engines"],
    }
    services = {
        each["name"]: each["eds_cluster_config"]["service_name"] for each in clusters if each.get("type") == "EDS"
    }
    assert services == {"engines": "engines", "followed:model:a": "model:a", "followed:model:b": "model:b"}


def test_the_pool_as_the_last_sidecar_knew_it_comes_before_what_the_configuration_lists() -> None:
    document = {
        "pool": {"endpoints": [{"address": "10.0.0.1:8000", "model": "a"}], "models": {"b/c": {}}},
        "discovery": {"file": "engines.yaml"},
        "gateway": {"remember": "/run/fairlead/pool"},
    }
    tree = bootstrap(Config.model_validate(document))
    clusters = tree["static_resources"]["clusters"]
    found = {
        each["name"]: each["cluster_type"]["typed_config"]["clusters"] for each in clusters if "cluster_type" in each
    }
    assert found == {
        "model:a": ["followed:model:a", "remembered:model:a", "listed:model:a"],
        "model:b/c": ["followed:model:b/c", "remembered:model:b/c"],
        "blind": ["engines", "remembered:engines", "listed:engines"],
    }
    advised = [each["route"]["cluster"] for each in routes_of(tree) if each["name"].startswith("chosen")]
    assert set(advised) == {"engines"}, "an aggregate cluster would lose the sidecar's list"
    (remembered,) = [each for each in clusters if each["name"] == "remembered:model:b/c"]
    assert remembered["eds_cluster_config"] == {
        "service_name": "model:b/c",
        "eds_config": {
            "resource_api_version": "V3",
            "path_config_source": {
                "path": "/run/fairlead/pool/model%3Ab%2Fc.json",
                "watched_directory": {"path": "/run/fairlead/pool"},
            },
        },
    }


@pytest.mark.parametrize("how", ["eds", "static"])
def test_envoy_does_not_know_engines_that_only_prefill_and_retries_what_was_prefilled_only_unsent(how: str) -> None:
    halves = [
        {"address": f"10.0.0.{n}:8000", "model": "m", "role": role} for n, role in enumerate(("prefill", "decode"))
    ]
    endpoints = [half | {"kv_transfer": {"connector": "nixl"}} for half in halves]
    document = {"pool": {"endpoints": endpoints}, "gateway": {"endpoints": how}}
    tree = bootstrap(Config.model_validate(document))
    assert "10.0.0.0" not in render(tree)
    assert "10.0.0.1" in render(tree)
    retries = {each["name"]: each["route"].get("retry_policy") for each in routes_of(tree) if "route" in each}
    assert retries["chosen, prefilled elsewhere"]["retry_on"] == "connect-failure"
    or_alone = "chosen, both halves or else alone"  # the next server of these computes the prompt itself
    assert retries[or_alone] == retries["chosen"]
    names = list(retries)
    assert names.index(or_alone) < names.index("chosen, prefilled elsewhere") < names.index("chosen")
    plain = bootstrap(Config.model_validate({"pool": {"endpoints": [{"address": "10.0.0.1:8000", "model": "m"}]}}))
    assert "prefilled" not in render({"routes": routes_of(plain)})


def routes_of(tree: dict[str, Any]) -> list[dict[str, Any]]:
    (chain,) = tree["static_resources"]["listeners"][0]["filter_chains"]
    (host,) = chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
    return list(host["routes"])


def test_a_pool_that_is_discovered_has_clusters_for_the_models_that_are_known() -> None:
    document = {"discovery": {"file": "engines.yaml"}, "pool": {"models": {"a": {}}}, "routes": {"auto": ["a", "b"]}}
    clusters = bootstrap(Config.model_validate(document))["static_resources"]["clusters"]
    names = [each["name"] for each in clusters]
    assert names == ["engines", "fairlead", "model:a", "model:b", "route:auto"]


def test_a_sidecar_that_listens_on_every_address_is_called_on_loopback() -> None:
    sidecar = bootstrap(config("10.0.0.1:8000", grpc="0.0.0.0:9002"))["static_resources"]["clusters"][1]

    (host,) = sidecar["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert host["endpoint"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 9002}


@pytest.mark.parametrize(
    ("follows", "engines", "path"),
    [
        ("static", ("vllm",), "/health"),
        ("static", ("sglang", "sglang"), "/ready"),
        ("static", ("vllm", "sglang"), "/v1/models"),
        ("eds", ("vllm",), "/v1/models"),  # other kinds may come
    ],
)
def test_engines_are_checked_at_a_page_that_all_of_them_answer_at_once(
    follows: str, engines: tuple[str, ...], path: str
) -> None:
    endpoints = [{"address": f"10.0.0.{n}:1", "model": f"m{n}", "engine": e} for n, e in enumerate(engines, 1)]
    document = {"pool": {"endpoints": endpoints}, "gateway": {"endpoints": follows}}
    tree = bootstrap(Config.model_validate(document))
    checks = {
        cluster["name"]: cluster["health_checks"][0]["http_health_check"]["path"]
        for cluster in tree["static_resources"]["clusters"]
        if "http_health_check" in cluster.get("health_checks", [{}])[0]
    }
    assert checks["engines"] == path


def test_a_listener_on_a_name_is_refused_with_what_to_write() -> None:
    with pytest.raises(UserError, match=r"gateway\.listen: .* write 127\.0\.0\.1:8080"):
        bootstrap(config("10.0.0.1:8000", listen="localhost:8080"))


@pytest.mark.parametrize(
    ("listen", "serves_both"), [("[::]:8080", True), ("[::1]:8080", False), ("0.0.0.0:8080", False)]
)
def test_any_address_of_ipv6_is_any_of_ipv4_too(listen: str, serves_both: bool) -> None:
    (listener,) = bootstrap(config("10.0.0.1:8000", listen=listen))["static_resources"]["listeners"]
    assert listener["address"]["socket_address"].get("ipv4_compat", False) == serves_both


def test_an_admin_address_without_a_port_is_refused() -> None:
    with pytest.raises(UserError, match=r"admin: .* has no port"):
        bootstrap(config("10.0.0.1:8000"), admin_address="127.0.0.1")


def _routes(tree: dict[str, Any]) -> list[dict[str, Any]]:
    manager = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    routes: list[dict[str, Any]] = manager["route_config"]["virtual_hosts"][0]["routes"]
    return routes


def test_full_duplex_retries_only_what_has_no_trailers_as_a_retry_would_send_their_body_twice() -> None:
    routes = _routes(bootstrap(config("10.0.0.1:8000"), mode="full_duplex"))
    chosen = {route["name"]: "retry_policy" in route["route"] for route in routes if "chosen" in route["name"]}
    once, others = {"chosen, sent once", "chosen, unread, sent once"}, {"chosen", "chosen, unread"}
    assert chosen == dict.fromkeys(once, False) | dict.fromkeys(others, True)
    assert list(chosen)[:2] == ["chosen, sent once", "chosen, unread, sent once"], "the first that matches counts"


@pytest.mark.parametrize("vouched_by", [None, "oauth2-proxy in front of Envoy"])
def test_a_clients_own_tenant_is_removed_unless_something_vouches_for_it(vouched_by: str | None) -> None:
    tree = bootstrap(
        Config.model_validate(
            {
                "pool": {"endpoints": [{"address": "10.0.0.1:8000", "model": "m"}]},
                "tenants": {"header": "X-Tenant", "vouched_by": vouched_by},
            }
        )
    )

    assert ("remove: x-tenant" in render(tree)) is (vouched_by is None)


@pytest.mark.parametrize("path", ["", "/", "v1/files", "/v1/*/x", "/v1 x", "/v1?x", "/v1#x", "/v1//x", "*"])
def test_an_open_path_that_no_request_could_have_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not a path; write one like /v1/files"):
        config("10.0.0.1:8000", paths=[path])


ODD_NAMES = ["org/name", "ünïcode", 'quote" and \\ and space', "model:x", "a,b", "]]", "--"]


def test_envoy_accepts_any_name_of_a_model_and_of_a_route() -> None:
    validate(
        bootstrap(
            Config.model_validate(
                {
                    "gateway": {"paths": ["/a.b/(c)/*", "/ü"], "processors": ["127.0.0.1:9002", "fairlead:9002"]},
                    "pool": {
                        "endpoints": [{"address": f"10.0.0.1:{8000 + i}", "model": n} for i, n in enumerate(ODD_NAMES)]
                    },
                    "routes": {f"{name} route": ODD_NAMES for name in ODD_NAMES},
                }
            )
        )
    )


def test_the_sidecars_are_asked_in_the_order_of_the_configuration() -> None:
    sidecar = bootstrap(config("10.0.0.1:8000", processors=["10.0.0.2:9002", "10.0.0.3:9002"]))["static_resources"][
        "clusters"
    ][1]

    found = [
        (locality.get("priority", 0), locality["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["address"])
        for locality in sidecar["load_assignment"]["endpoints"]
    ]
    assert found == [(0, "10.0.0.2"), (1, "10.0.0.3")]


@pytest.mark.parametrize(
    ("processors", "waits"), [([], True), (["10.0.0.2:9002"], True), (["10.0.0.2:9002", "10.0.0.3:9002"], False)]
)
def test_a_sidecar_that_is_back_waits_for_its_envoy_only_where_it_is_alone(processors: list[str], waits: bool) -> None:
    """Of two, Envoy goes on following the one that has stayed: the other would wait for it in vain."""
    tree = bootstrap(config("10.0.0.1:8000", endpoints="eds", processors=processors))
    assert (headers.FOLLOWS.decode() in yaml.safe_dump(tree)) is waits


def test_a_body_limit_that_envoy_cannot_hold_is_refused() -> None:
    with pytest.raises(UserError, match=r"gateway\.max_body_bytes"):
        bootstrap(config("10.0.0.1:8000", max_body_bytes=2**31))


def test_envoy_has_memory_for_64_of_the_largest_bodies_unless_told_how_much_there_is() -> None:
    def memory_bytes(**gateway: Any) -> object:
        (_, heap) = bootstrap(config("127.0.0.1:8001", **gateway))["overload_manager"]["resource_monitors"]
        return heap["typed_config"]["max_heap_size_bytes"]

    assert memory_bytes() == 2 << 30
    assert memory_bytes(max_body_bytes=1 << 30) == 64 << 30
    assert memory_bytes(memory_bytes=256 << 20) == 256 << 20


def test_memory_for_less_than_four_bodies_is_refused_with_what_to_write() -> None:
    with pytest.raises(ValidationError, match=r"write 400000000 or more, or lower max_body_bytes"):
        config("127.0.0.1:8001", max_body_bytes=100_000_000, memory_bytes=399_999_999)
    with pytest.raises(ValidationError, match=r"write 134217728 or more"):
        config("127.0.0.1:8001", max_body_bytes=1, memory_bytes=1000)


def test_a_processor_timeout_that_envoy_cannot_wait_for_is_refused() -> None:
    with pytest.raises(UserError, match=r"gateway\.processor_timeout_ms"):
        bootstrap(config("10.0.0.1:8000", processor_timeout_ms=3_600_001))


ports = st.integers(1, 65535)
ips = st.ip_addresses().map(lambda ip: f"[{ip}]" if ip.version == 6 else str(ip))
names = st.text(string.ascii_lowercase, min_size=1, max_size=20)
ip_addresses = st.builds("{}:{}".format, ips, ports)
any_addresses = st.builds("{}:{}".format, ips | names, ports)


def valid_config(
    addresses: list[str], grpc: str, listen: str, fallbacks: int, max_body_bytes: int, processor_timeout_ms: int
) -> Config:
    limits = {"max_body_bytes": max_body_bytes, "processor_timeout_ms": processor_timeout_ms}
    try:
        return config(*addresses, grpc=grpc, listen=listen, fallbacks=fallbacks, **limits)
    except ValidationError:  # two of them are one port
        reject()


configs = st.builds(
    valid_config,
    st.lists(any_addresses, min_size=1, max_size=20, unique=True),
    any_addresses | st.just("unix:/run/fairlead.sock"),
    ip_addresses,
    st.integers(0, 8),
    st.integers(1, 2**31 - 1),
    st.integers(1, 3_600_000),
)


@settings(max_examples=40)
@given(configs, st.sampled_from(["buffered", "full_duplex"]))
def test_every_valid_configuration_gives_a_bootstrap_that_yaml_keeps_and_that_names_every_engine(
    valid: Config, mode: Mode
) -> None:
    tree = bootstrap(valid, mode=mode)

    assert yaml.safe_load(render(tree, comment=comment("a", mode))) == tree
    (engines,) = (c for c in tree["static_resources"]["clusters"] if c["name"] == "engines")
    hosts = [
        host["endpoint"]["address"]["socket_address"]
        for host in engines["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    asked = [host_and_port(endpoint.address)[1] for endpoint in valid.pool.endpoints]
    assert [host["port_value"] for host in hosts] == asked
