"""Which endpoints pods and EndpointSlices are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.discovery.kubernetes.endpoints import Seen, of_pods, of_slices, without_port
from fairlead.discovery.kubernetes.objects import EndpointSlice, Pod
from fairlead.discovery.source import DiscoveredEndpoint


def pod(
    name: str = "vllm-0",
    ip: str = "10.0.0.1",
    *,
    ready: bool = True,
    phase: str = "Running",
    ending: bool = False,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    document: dict[str, Any] = {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "status": {"phase": phase, "podIP": ip, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }
    if ending:
        document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return msgspec.json.decode(msgspec.json.encode(document), type=Pod)


def slice_of(*endpoints: dict[str, Any], ports: Any = ({"port": 8000},), family: str = "IPv4") -> EndpointSlice:
    document = {"metadata": {"name": "s"}, "addressType": family, "endpoints": list(endpoints), "ports": list(ports)}
    return msgspec.json.decode(msgspec.json.encode(document), type=EndpointSlice)


def settled(*pods: Pod, ports: tuple[int, ...] = (8000,)) -> tuple[DiscoveredEndpoint, ...]:
    return Seen().settle(of_pods(pods, ports))


def test_each_port_of_each_pod_is_an_endpoint() -> None:
    found = settled(pod("a", "10.0.0.1"), pod("b", "fd00::2"), ports=(8000, 8001))
    assert [endpoint.address for endpoint in found] == [
        "10.0.0.1:8000", "10.0.0.1:8001", "[fd00::2]:8000", "[fd00::2]:8001",
    ]  # fmt: skip
    assert [endpoint.labels["rank"] for endpoint in found] == ["0", "1", "0", "1"]


def test_an_annotation_limits_the_ports() -> None:
    found = settled(pod(annotations={"llm-d.ai/active-ports": "8001, 8002"}), ports=(8000, 8001, 8002))
    assert [endpoint.address for endpoint in found] == ["10.0.0.1:8001", "10.0.0.1:8002"]


def test_labels_and_annotations_say_what_the_engine_is() -> None:
    (found,) = settled(
        pod(
            labels={
                "topology.kubernetes.io/region": "eu-1",
                "llm-d.ai/role": "decode",
                "fairlead/engine": "sglang",
                "fairlead/model": "label",
            },
            annotations={"fairlead/model": "Qwen/Qwen2.5-7B, sql-adapter", "fairlead/capability": "fit.json"},
        )
    )
    assert (found.models, found.engine, found.region, found.role, found.capability) == (
        ("Qwen/Qwen2.5-7B", "sql-adapter"), "sglang", "eu-1", "decode", "fit.json",
    )  # fmt: skip


def test_a_pod_that_says_too_much_is_an_engine_all_the_same() -> None:
    """Whoever writes pods need not be the sidecar's operator; regions are labels of metrics."""
    models = ",".join(f"m{number}" for number in range(20_000))
    (found,) = settled(pod(annotations={"fairlead/model": models, "fairlead/region": "eu" * 50_000}))
    assert (len(found.models), found.models[0], found.region) == (4096, "m0", "")


@pytest.mark.parametrize(("written", "ms"), [("0.21", 0.21), ("", None), ("fast", None), ("-1", None), ("inf", None)])
def test_a_pod_says_how_fast_its_accelerator_is(written: str, ms: float | None) -> None:
    says = {"fairlead/prefill-ms-per-token": written, "fairlead/decode-ms-per-token": "7"}
    (found,) = settled(pod(annotations=says))
    assert (found.prefill_ms_per_token, found.decode_ms_per_token) == (ms, 7.0)


@pytest.mark.parametrize(
    ("labels", "role", "connector"),
    [
        ({}, "both", ""),
        ({"llm-d.ai/role": "prefill"}, "prefill", "proxy"),
        ({"llm-d.ai/role": "decode", "fairlead/kv-connector": "nixl"}, "decode", "nixl"),
        ({"fairlead/role": "both", "fairlead/kv-connector": "nixl"}, "both", "nixl"),
        ({"fairlead/role": "encode", "fairlead/kv-connector": "mooncake"}, "both", ""),
    ],
)
def test_a_pods_role_comes_with_the_way_of_its_kv(labels: dict[str, str], role: str, connector: str) -> None:
    (found,) = settled(pod(labels=labels))
    assert (found.role, found.kv_connector) == (role, connector)


@pytest.mark.parametrize(
    ("labels", "connector", "bootstrap"),
    [
        ({"fairlead/role": "prefill"}, "sglang", "10.0.0.1:8998"),
        ({"fairlead/role": "prefill", "fairlead/bootstrap-port": "9000"}, "sglang", "10.0.0.1:9000"),
        ({"fairlead/role": "prefill", "fairlead/bootstrap-port": "70000"}, "sglang", "10.0.0.1:8998"),
        ({"fairlead/role": "prefill", "fairlead/bootstrap-port": "0000080000"}, "sglang", "10.0.0.1:8998"),
        ({"fairlead/role": "prefill", "fairlead/bootstrap-port": "000001" + "1" * 5000}, "sglang", "10.0.0.1:8998"),
        ({"fairlead/role": "decode"}, "sglang", ""),
        ({"fairlead/role": "both"}, "", ""),
    ],
)
def test_the_halves_of_sglang_are_named_by_labels(labels: dict[str, str], connector: str, bootstrap: str) -> None:
    (found,) = settled(pod(labels={"fairlead/kv-connector": "sglang", **labels}))
    assert (found.kv_connector, found.bootstrap) == (connector, bootstrap)


def test_an_engine_of_an_unknown_kind_is_asked_what_it_is() -> None:
    (found,) = settled(pod(labels={"fairlead/engine": "tensorrt"}))
    assert found.engine == ""


def test_a_capability_file_lies_below_the_configuration() -> None:
    files = {"fit/small.json": "fit/small.json", "/etc/passwd": "", "a/../../secret": ""}
    for name, used in files.items():
        (found,) = settled(pod(annotations={"fairlead/capability": name}))
        assert found.capability == used


def test_a_pod_that_has_never_been_ready_is_not_listed() -> None:
    assert settled(pod(ready=False), pod("b", ip="", ready=True)) == ()


def test_a_pod_that_was_ready_drains_until_it_is_ready_again() -> None:
    seen = Seen()
    drains = [
        [endpoint.draining for endpoint in seen.settle(of_pods([pod(ready=ready)], (8000,)))]
        for ready in (True, False, False, True)
    ]
    assert drains == [[False], [True], [True], [False]]


def test_a_terminating_pod_drains_though_it_is_ready_still() -> None:
    seen = Seen()
    seen.settle(of_pods([pod()], (8000,)))
    (found,) = seen.settle(of_pods([pod(ending=True)], (8000,)))
    assert found.draining


def test_a_pod_that_has_ended_is_gone() -> None:
    seen = Seen()
    seen.settle(of_pods([pod()], (8000,)))
    assert seen.settle(of_pods([pod(phase="Failed")], (8000,))) == ()


def test_an_address_that_passes_to_a_new_pod_takes_requests() -> None:
    seen = Seen()
    seen.settle(of_pods([pod("old")], (8000,)))
    for pods in ([pod("old", ending=True), pod("new")], [pod("new"), pod("old", ending=True)]):
        (found,) = seen.settle(of_pods(pods, (8000,)))
        assert (found.draining, found.labels["pod"]) == (False, "new")


def test_an_address_that_was_gone_starts_anew() -> None:
    seen = Seen()
    for pods in ([pod()], []):
        seen.settle(of_pods(pods, (8000,)))
    assert seen.settle(of_pods([pod(ready=False)], (8000,))) == ()


def test_slices_list_their_ready_endpoints_and_an_unset_condition_is_ready() -> None:
    found = Seen().settle(
        of_slices(
            [
                slice_of({"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"], "conditions": {"ready": False}}),
                slice_of({"addresses": ["10.0.0.3"], "conditions": {"ready": True, "serving": None}}),
            ],
            None,
        )
    )
    assert [endpoint.address for endpoint in found] == ["10.0.0.1:8000", "10.0.0.3:8000"]


def test_a_terminating_endpoint_of_a_slice_drains() -> None:
    seen = Seen()
    seen.settle(of_slices([slice_of({"addresses": ["10.0.0.1"]})], None))
    ending = {"ready": False, "serving": True, "terminating": True}
    (found,) = seen.settle(of_slices([slice_of({"addresses": ["10.0.0.1"], "conditions": ending})], None))
    assert found.draining


def test_a_service_of_two_families_has_each_pod_once() -> None:
    both = [slice_of({"addresses": ["fd00::1"]}, family="IPv6"), slice_of({"addresses": ["10.0.0.1"]})]
    assert [endpoint.address for endpoint in Seen().settle(of_slices(both, None))] == ["10.0.0.1:8000"]
    assert [endpoint.address for endpoint in Seen().settle(of_slices(both[:1], None))] == ["[fd00::1]:8000"]


def test_the_port_of_a_service_is_named_where_it_has_several() -> None:
    ports = (
        {"name": "http", "port": 8000},
        {"name": "metrics", "port": 9100},
        {"name": "http", "port": 1, "protocol": "UDP"},
    )
    slices = [slice_of({"addresses": ["10.0.0.1"]}, ports=ports)]
    assert list(of_slices(slices, None)) == []
    assert [endpoint.address for endpoint, _ in of_slices(slices, "http")] == ["10.0.0.1:8000"]
    assert [endpoint.address for endpoint, _ in of_slices(slices, "9100")] == ["10.0.0.1:9100"]


@pytest.mark.parametrize(
    ("port", "sentence"),
    [
        (None, "port is not written, and it has http (8000), metrics (9100); write port: the name or number of one"),
        ("grpc", 'its port "grpc" is not there, and it has http (8000), metrics (9100)'),
        ("dns", 'its port "dns" is not there'),
        ("http", ""),
    ],
)
def test_a_port_by_which_no_endpoint_is_reached_is_explained(port: str | None, sentence: str) -> None:
    ports = (
        {"name": "http", "port": 8000},
        {"name": "metrics", "port": 9100},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    )
    slices = [slice_of({"addresses": ["10.0.0.1"]}, ports=ports), slice_of(ports=())]
    mistake = without_port(slices, port)
    assert mistake.startswith(sentence)
    assert bool(mistake) == bool(sentence)


def test_a_service_without_endpoints_needs_no_port() -> None:
    assert without_port([slice_of(ports=())], "http") == ""


def test_a_slice_without_the_port_is_no_mistake_where_another_has_it() -> None:
    old = slice_of({"addresses": ["10.0.0.1"]}, ports=({"name": "web", "port": 80},))
    new = slice_of({"addresses": ["10.0.0.2"]}, ports=({"name": "http", "port": 8000},))
    assert without_port([old, new], "http") == ""


@pytest.mark.parametrize(
    ("ip", "address"),
    [
        ("FD00:0::1", "[fd00::1]:8000"),
        ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]:8000"),
        ("010.000.0.08", "10.0.0.8:8000"),
    ],
)
def test_an_address_is_as_envoy_writes_it(ip: str, address: str) -> None:
    assert [each.address for each in settled(pod(ip=ip))] == [address]
    assert [each.address for each, _ in of_slices([slice_of({"addresses": [ip]})], None)] == [address]


def test_names_of_an_annotation_that_no_request_can_write_do_not_count() -> None:
    (found,) = settled(pod(annotations={"fairlead/model": "llama,, a\nb ,mistral"}))
    assert found.models == ("llama", "mistral")


pods_of = st.lists(
    st.builds(
        pod,
        name=st.sampled_from("abcd"),
        ip=st.sampled_from(["", "10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        ready=st.booleans(),
        ending=st.booleans(),
        phase=st.sampled_from(["Pending", "Running", "Failed"]),
    ),
    max_size=6,
)


@given(st.lists(pods_of, max_size=5))
def test_each_address_is_listed_once_and_takes_requests_exactly_if_a_ready_pod_has_it(history: list[list[Pod]]) -> None:
    seen = Seen()
    for pods in history:
        found = seen.settle(of_pods(pods, (8000,)))
        addresses = [endpoint.address for endpoint in found]
        assert len(set(addresses)) == len(addresses)
        taking = {
            f"{each.status.pod_ip}:8000"
            for each in pods
            if each.status.pod_ip
            and each.status.phase != "Failed"
            and each.metadata.deletion_timestamp is None
            and each.status.conditions is not None
            and each.status.conditions[0].status == "True"
        }
        assert {endpoint.address for endpoint in found if not endpoint.draining} == taking
