"""Endpoints of a cluster, through a real API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.config.kubernetes import Kubernetes
from fairlead.discovery import Discovery, SourceStatus
from fairlead.discovery.kubernetes import KubernetesSource
from fairlead.discovery.kubernetes.access import from_kubeconfig
from fairlead.discovery.kubernetes.api import Api, ApiError
from fairlead.discovery.kubernetes.objects import Pod
from fairlead.discovery.kubernetes.reflector import Reflector
from tests.kubernetes.cluster import Cluster, Namespace

WITHIN_S = 120.0
READER = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["inference.networking.k8s.io"],
        "resources": ["inferencepools"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": ["llm-d.ai", "inference.networking.x-k8s.io"],
        "resources": ["inferenceobjectives", "inferencemodelrewrites"],
        "verbs": ["get", "list", "watch"],
    },
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
]


class Followed:
    """What discovery knows of one cluster."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    @property
    def status(self) -> SourceStatus:
        (status,) = self._discovery.statuses
        return status

    def taking(self) -> set[str]:
        return {endpoint.address for endpoint in self.status.endpoints or () if not endpoint.draining}

    def draining(self) -> set[str]:
        return {endpoint.address for endpoint in self.status.endpoints or () if endpoint.draining}

    async def until(self, condition: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                while not condition():  # noqa: ASYNC110 - nothing to wait on
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"it did not happen: {self.status}") from None


def kubeconfig(folder: Path, namespace: Namespace, token: str) -> Path:
    (folder / "ca.pem").write_bytes(namespace.cluster.ca)
    (folder / "token").write_text(token)
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": namespace.name}}],
        "clusters": [{"name": "c", "cluster": {"server": namespace.cluster.url, "certificate-authority": "ca.pem"}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@asynccontextmanager
async def followed(
    folder: Path, namespace: Namespace, *, token: str | None = None, **what: Any
) -> AsyncIterator[Followed]:
    kubeconfig(folder, namespace, namespace.account("sidecar", READER) if token is None else token)
    discovery = Discovery(lambda: None, time.monotonic)
    settings = Kubernetes(kubeconfig="kubeconfig", **what)
    await discovery.follow([KubernetesSource(settings, folder)])
    try:
        yield Followed(discovery)
    finally:
        await discovery.stop()


async def test_an_inference_pools_pods_come_drain_and_go(tmp_path: Path, namespace: Namespace) -> None:
    namespace.pool("pool", {"app": "vllm"}, [8000, 8001])
    namespace.pod("a", "10.0.0.1")
    namespace.pod("other", "10.0.0.9", labels={"app": "web"})
    async with followed(tmp_path, namespace, inference_pool="pool") as found:
        await found.until(lambda: found.taking() == {"10.0.0.1:8000", "10.0.0.1:8001"})
        namespace.pod("b", "10.0.0.2", ready=False)
        namespace.pod("c", "10.0.0.3")
        await found.until(lambda: "10.0.0.3:8000" in found.taking())
        assert not any(address.startswith("10.0.0.2:") for address in found.taking() | found.draining())
        namespace.status("b", ready=True)
        await found.until(lambda: "10.0.0.2:8000" in found.taking())
        namespace.status("b", ready=False)
        namespace.delete_pod("c")
        await found.until(lambda: {"10.0.0.2:8000", "10.0.0.3:8000"} <= found.draining())
        namespace.remove_pod("c")
        await found.until(lambda: "10.0.0.3:8000" not in found.draining())
        assert found.taking() == {"10.0.0.1:8000", "10.0.0.1:8001"}


async def test_a_pool_that_changes_is_followed(tmp_path: Path, namespace: Namespace) -> None:
    namespace.pod("a", "10.0.0.1", labels={"app": "vllm"})
    namespace.pod("b", "10.0.0.2", labels={"app": "sglang"})
    async with followed(tmp_path, namespace, inference_pool="pool") as found:
        await found.until(lambda: found.status.endpoints == ())  # there is no pool yet
        namespace.pool("pool", {"app": "vllm"}, [8000])
        await found.until(lambda: found.taking() == {"10.0.0.1:8000"})
        namespace.pool("pool", {"app": "vllm"}, [9000])
        await found.until(lambda: found.taking() == {"10.0.0.1:9000"})
        namespace.pool("pool", {"app": "sglang"}, [9000])
        await found.until(lambda: found.taking() == {"10.0.0.2:9000"})
        namespace.delete_pool("pool")
        await found.until(lambda: found.status.endpoints == ())
        namespace.pool("pool", {"app": "sglang"}, [8000])
        await found.until(lambda: found.taking() == {"10.0.0.2:8000"})


async def test_a_selector_is_what_kubectl_takes(tmp_path: Path, namespace: Namespace) -> None:
    namespace.pod("a", "10.0.0.1", labels={"app": "vllm", "tier": "prod"})
    namespace.pod("b", "10.0.0.2", labels={"app": "vllm", "tier": "test"})
    async with followed(tmp_path, namespace, selector="app in (vllm, x),tier!=test", ports=(8000,)) as found:
        await found.until(lambda: found.taking() == {"10.0.0.1:8000"})


async def test_a_services_slices_are_followed(tmp_path: Path, namespace: Namespace) -> None:
    ready, ending = {"ready": True}, {"ready": False, "serving": True, "terminating": True}
    ports = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9100}]
    first, second = {"addresses": ["10.0.0.1"], "conditions": ready}, {"addresses": ["10.0.0.2"], "conditions": ready}
    namespace.slices("vllm", "vllm-1", [first], ports, "IPv4")
    namespace.slices("vllm", "vllm-2", [second], ports, "IPv4")
    namespace.slices("vllm", "vllm-6", [{"addresses": ["fd00::1"], "conditions": ready}], ports, "IPv6")
    namespace.slices("other", "other-1", [{"addresses": ["10.0.0.9"], "conditions": ready}], ports, "IPv4")
    async with followed(tmp_path, namespace, service="vllm", port="http") as found:
        await found.until(lambda: found.taking() == {"10.0.0.1:8000", "10.0.0.2:8000"})
        namespace.slices("vllm", "vllm-2", [{**second, "conditions": ending}], ports, "IPv4")
        await found.until(lambda: found.draining() == {"10.0.0.2:8000"})
        namespace.slices("vllm", "vllm-2", [], ports, "IPv4")
        await found.until(lambda: (found.taking(), found.draining()) == ({"10.0.0.1:8000"}, set()))


async def test_without_rbac_the_pool_stays_and_the_error_says_what_to_grant(
    tmp_path: Path, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.discovery.kubernetes.source.LASTS_S", 1)
    namespace.pod("a", "10.0.0.1")
    async with followed(tmp_path, namespace, selector="app=vllm", ports=(8000,)) as found:
        await found.until(lambda: found.taking() == {"10.0.0.1:8000"})
        namespace.allow("sidecar", [])
        await found.until(lambda: found.status.error)
        namespace.pod("b", "10.0.0.2")
        assert "give its Role get, list and watch of pods" in found.status.error
        assert found.taking() == {"10.0.0.1:8000"}
        namespace.allow("sidecar", READER)
        await found.until(lambda: found.taking() == {"10.0.0.1:8000", "10.0.0.2:8000"})
        assert found.status.error == ""


async def test_the_pool_stays_while_the_api_server_is_away_and_says_its_age(
    tmp_path: Path, cluster: Cluster, namespace: Namespace
) -> None:
    namespace.pod("a", "10.0.0.1")
    namespace.pod("b", "10.0.0.2")
    async with followed(tmp_path, namespace, selector="app=vllm", ports=(8000,)) as found:
        await found.until(lambda: len(found.taking()) == 2)
        cluster.stop()
        await found.until(lambda: found.status.error and (found.status.age_s() or 0) > 1)
        assert len(found.taking()) == 2
        cluster.start()
        namespace.delete_pod("a")
        await found.until(lambda: found.taking() == {"10.0.0.2:8000"})
        assert found.status.error == ""


async def test_a_token_that_is_refused_is_read_again(tmp_path: Path, namespace: Namespace) -> None:
    namespace.pod("a", "10.0.0.1")
    good = namespace.account("sidecar", READER)
    async with followed(tmp_path, namespace, token="expired", selector="app=vllm", ports=(8000,)) as found:
        await found.until(lambda: "Unauthorized" in found.status.error)
        (tmp_path / "token").write_text(good)
        await found.until(lambda: found.taking() == {"10.0.0.1:8000"})


async def test_without_the_crds_the_error_says_so(
    tmp_path: Path, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.discovery.kubernetes.source.POOLS_API", "/apis/inference.networking.k8s.io/v9")
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    token = namespace.account("sidecar", everything)
    async with followed(tmp_path, namespace, token=token, inference_pool="pool") as found:
        await found.until(lambda: "install the CRDs" in found.status.error)
        assert found.status.endpoints is None


async def test_a_revision_that_is_forgotten_is_410_gone(tmp_path: Path, cluster: Cluster, namespace: Namespace) -> None:
    namespace.pod("a", "10.0.0.1")
    access = from_kubeconfig(kubeconfig(tmp_path, namespace, namespace.account("sidecar", READER)))
    cluster.compact()
    async with Api(access) as api:
        path = f"/api/v1/namespaces/{namespace.name}/pods"
        reflector = Reflector(api, path, Pod, {}, changed=lambda: None, reported=lambda _: None, lasts_s=5)
        reflector._version = "1"
        with pytest.raises(ApiError) as gone:
            await reflector._watch()
        assert gone.value.code == 410
        running = asyncio.create_task(reflector.run())
        async with asyncio.timeout(WITHIN_S):
            while not reflector.objects:  # noqa: ASYNC110 - nothing to wait on
                await asyncio.sleep(0.01)
        running.cancel()
