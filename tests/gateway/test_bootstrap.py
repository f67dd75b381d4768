"""What `bootstrap` writes, judged by Envoy itself."""

from __future__ import annotations

import string
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.addresses import host_and_port
from fairlead.config import Config
from fairlead.errors import UserError
from fairlead.gateway import Mode, bootstrap, comment, render, validate


def config(*addresses: str, grpc: str = "127.0.0.1:9002", listen: str = "127.0.0.1:8080", **gateway: int) -> Config:
    return Config.model_validate(
        {
            "listen": {"grpc": grpc},
            "gateway": {"listen": listen, **gateway},
            "pool": {"endpoints": [{"address": address, "model": "m"} for address in addresses]},
        }
    )


ACCEPTED = {
    "one engine": config("127.0.0.1:8001"),
    "many engines": config(*(f"10.0.0.{host}:8000" for host in range(1, 65))),
    "unix socket": config("127.0.0.1:8001", grpc="unix:/run/fairlead/fairlead.sock"),
    "ipv6": config("[::1]:8001", "[2001:db8::7]:8000", grpc="[::1]:9002", listen="[::]:8080"),
    "names": config("vllm-0.vllm:8000", "10.0.0.1:8000", grpc="fairlead.default.svc:9002"),
    "no fallbacks": config("127.0.0.1:8001", "127.0.0.1:8002", fallbacks=0),
    "small bodies": config("127.0.0.1:8001", max_body_bytes=1),
    "large bodies": config("127.0.0.1:8001", max_body_bytes=2**31 - 1),
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


def test_a_sidecar_that_listens_on_every_address_is_called_on_loopback() -> None:
    sidecar = bootstrap(config("10.0.0.1:8000", grpc="0.0.0.0:9002"))["static_resources"]["clusters"][1]

    (host,) = sidecar["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert host["endpoint"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 9002}


def test_a_listener_on_a_name_is_refused_with_what_to_write() -> None:
    with pytest.raises(UserError, match=r"gateway\.listen: .* write 127\.0\.0\.1:8080"):
        bootstrap(config("10.0.0.1:8000", listen="localhost:8080"))


def test_an_admin_address_without_a_port_is_refused() -> None:
    with pytest.raises(UserError, match=r"admin: .* has no port"):
        bootstrap(config("10.0.0.1:8000"), admin_address="127.0.0.1")


def test_a_body_limit_that_envoy_cannot_hold_is_refused() -> None:
    with pytest.raises(UserError, match=r"gateway\.max_body_bytes"):
        bootstrap(config("10.0.0.1:8000", max_body_bytes=2**31))


def test_a_processor_timeout_that_envoy_cannot_wait_for_is_refused() -> None:
    with pytest.raises(UserError, match=r"gateway\.processor_timeout_ms"):
        bootstrap(config("10.0.0.1:8000", processor_timeout_ms=3_600_001))


ports = st.integers(1, 65535)
ips = st.ip_addresses().map(lambda ip: f"[{ip}]" if ip.version == 6 else str(ip))
names = st.text(string.ascii_lowercase, min_size=1, max_size=20)
ip_addresses = st.builds("{}:{}".format, ips, ports)
any_addresses = st.builds("{}:{}".format, ips | names, ports)
configs = st.builds(
    lambda addresses, grpc, listen, fallbacks, body, timeout: config(
        *addresses, grpc=grpc, listen=listen, fallbacks=fallbacks, max_body_bytes=body, processor_timeout_ms=timeout
    ),
    st.lists(any_addresses, min_size=1, max_size=20, unique=True),
    any_addresses | st.just("unix:/run/fairlead.sock"),
    ip_addresses,
    st.integers(0, 8),
    st.integers(1, 2**31 - 1),
    st.integers(1, 3_600_000),
)


@settings(deadline=None, max_examples=40)  # a bootstrap of 20 engines takes long to write on a busy machine
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
