"""A real kube-apiserver over a real etcd, and the hand of a kubelet: pods and their status are written by tests.

There is no scheduler, no kubelet and no controller, as in controller-runtime's envtest: what a test writes is all that
happens.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fairlead.processes import free_ports
from tests.edge.certificates import Authority
from tests.kubernetes.parts import crds, part

READY_WITHIN_S: Final = 120.0
ADMIN: Final = "secret-of-the-admin"
POOLS: Final = "/apis/inference.networking.k8s.io/v1"
RULES: Final = "/apis/inference.networking.x-k8s.io/v1alpha2"  # llm-d.ai's are the same objects, of another group
Json = dict[str, Any]


class RefusedError(Exception):
    """The API server's answer was an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Cluster:
    """`with Cluster(folder) as cluster:` runs until the block ends; `stop` and `start` are of the API server alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._etcd_port, self._peer_port, self.port = free_ports(3)
        self._authority = Authority(folder / "ca")
        self._certificate, self._key = self._authority.issue("apiserver")
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def ca(self) -> bytes:
        return self._authority.pem

    def __enter__(self) -> Cluster:
        keys = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        encodings = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        self._path("sa.key").write_bytes(keys.private_bytes(*encodings))
        self._path("tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n')
        try:
            self._etcd = self._run(
                "etcd",
                f"--data-dir={self._path('etcd')}",
                f"--listen-client-urls=http://127.0.0.1:{self._etcd_port}",
                f"--advertise-client-urls=http://127.0.0.1:{self._etcd_port}",
                f"--listen-peer-urls=http://127.0.0.1:{self._peer_port}",
                "--unsafe-no-fsync=true",
                "--log-level=error",
            )
            self.start()
            self._install_crds()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start(self) -> None:
        """Start the API server, and wait until it is ready."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start the API server. It ends with the thread that calls this."""
        self._server = self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=10.99.0.1",
            f"--tls-cert-file={self._certificate}",
            f"--tls-private-key-file={self._key}",
            f"--cert-dir={self._folder}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            f"--service-account-issuer=https://localhost:{self.port}/",
            f"--service-account-key-file={self._path('sa.key')}",
            f"--service-account-signing-key-file={self._path('sa.key')}",
            f"--token-auth-file={self._path('tokens.csv')}",
            "--min-request-timeout=5",
            "--endpoint-reconciler-type=none",
            "--v=0",
        )

    def wait(self) -> None:
        """Wait until the API server is ready."""
        assert self._server is not None
        give_up_s = time.monotonic() + READY_WITHIN_S
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException, RefusedError):
                self.request("GET", "/readyz")
                return
            if self._server.poll() is not None or time.monotonic() > give_up_s:
                log = self._path("kube-apiserver.log").read_text(errors="replace")
                raise AssertionError(f"kube-apiserver did not become ready:\n{log[-4000:]}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Kill the API server; what it has stored stays."""
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def compact(self) -> None:
        """Let etcd forget all past revisions, and the API server what it has kept of them: they are 410 Gone."""
        self.forget_history()
        self.stop()
        self.start()

    def forget_history(self) -> None:
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv"
        revision = self._post(f"{url}/range", {"key": "AA=="})["header"]["revision"]
        self._post(f"{url}/compaction", {"revision": revision, "physical": True})

    @staticmethod
    def _post(url: str, document: Json) -> Json:
        with urllib.request.urlopen(url, json.dumps(document).encode(), timeout=30) as answer:
            found: Json = json.load(answer)
        return found

    def request(
        self, method: str, path: str, body: object = None, *, token: str = ADMIN, kind: str = "application/json"
    ) -> Json:
        """The answer to one request. Raises RefusedError."""
        context = ssl.create_default_context(cadata=self.ca.decode())
        connection = http.client.HTTPSConnection("localhost", self.port, context=context, timeout=30)
        with contextlib.closing(connection):
            content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, {"authorization": f"Bearer {token}", "content-type": kind})
            answer = connection.getresponse()
            text = answer.read()
        found: Json = json.loads(text) if text.startswith(b"{") else {}
        if answer.status >= 400:
            raise RefusedError(answer.status, found.get("message", text.decode(errors="replace")))
        return found

    def apply(self, path: str, document: Json) -> Json:
        """Create `document` in the collection at `path`, or replace it."""
        try:
            return self.request("POST", path, document)
        except RefusedError as error:
            if error.code != 409:
                raise
        there = f"{path}/{document['metadata']['name']}"
        return self.request("PATCH", there, document, kind="application/merge-patch+json")

    def dry_run(self, document: Json, namespace: str) -> None:
        """Let the API server validate a manifest, as it would before it creates the object. Raises RefusedError."""
        version, kind = document["apiVersion"], document["kind"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resources = self.request("GET", group)["resources"]
        (found,) = (each for each in resources if each["kind"] == kind and "/" not in each["name"])
        place = f"/namespaces/{namespace}" if found["namespaced"] else ""
        self.request("POST", f"{group}{place}/{found['name']}?dryRun=All&fieldValidation=Strict", document)

    def namespace(self, name: str) -> Namespace:
        self.apply("/api/v1/namespaces", {"metadata": {"name": name}})
        return Namespace(self, name)

    def _install_crds(self) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        definitions = list(yaml.load_all(crds().read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        for definition in definitions:
            self.apply(path, definition)
        names = [definition["metadata"]["name"] for definition in definitions]
        give_up_s = time.monotonic() + READY_WITHIN_S
        for name in names:
            while not self._is_established(f"{path}/{name}"):
                assert time.monotonic() < give_up_s, f"{name} was not established"
                time.sleep(0.1)

    def _is_established(self, path: str) -> bool:
        conditions = self.request("GET", path).get("status", {}).get("conditions", ())
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    def _path(self, name: str) -> Path:
        return self._folder / name

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """The program ends with the thread that calls this, however that ends."""
        guard = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
        with self._path(f"{name}.log").open("ab") as log:
            return subprocess.Popen((*guard, str(part(name)), *arguments), stdout=log, stderr=log, cwd=self._folder)

    def _end(self) -> None:
        for process in (self._server, self._etcd):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


class Namespace:
    """The objects of one namespace, as kubectl and a kubelet would write them."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.path = f"/api/v1/namespaces/{name}"

    def pod(
        self,
        name: str,
        ip: str,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> None:
        """A pod on a node, running, with this address."""
        document = {
            "metadata": {"name": name, "labels": labels or {"app": "vllm"}, "annotations": annotations or {}},
            "spec": {
                "nodeName": "node",  # with a node, a deleted pod is terminating until its kubelet has ended it
                "containers": [{"name": "engine", "image": "vllm"}],
            },
        }
        self.cluster.request("POST", f"{self.path}/pods", document)
        self.status(name, ip=ip, ready=ready)

    def status(self, name: str, *, ip: str | None = None, ready: bool = True, phase: str = "Running") -> None:
        status: Json = {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}]}
        if ip is not None:
            status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
        path = f"{self.path}/pods/{name}/status"
        self.cluster.request("PATCH", path, {"status": status}, kind="application/strategic-merge-patch+json")

    def delete_pod(self, name: str) -> None:
        """The pod is terminating until `remove_pod`."""
        self.cluster.request("DELETE", f"{self.path}/pods/{name}")

    def remove_pod(self, name: str) -> None:
        self.cluster.request("DELETE", f"{self.path}/pods/{name}?gracePeriodSeconds=0")

    def pool(self, name: str, labels: Mapping[str, str], ports: Sequence[int]) -> None:
        document = {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": dict(labels)},
                "targetPorts": [{"number": port} for port in ports],
                "endpointPickerRef": {"name": "fairlead", "port": {"number": 9002}},
            },
        }
        self.cluster.apply(f"{POOLS}/namespaces/{self.name}/inferencepools", document)

    def delete_pool(self, name: str) -> None:
        self.cluster.request("DELETE", f"{POOLS}/namespaces/{self.name}/inferencepools/{name}")

    def objective(self, name: str, priority: int | None, pool: str = "pool") -> None:
        spec: Json = {"poolRef": {"name": pool}} | ({} if priority is None else {"priority": priority})
        self._rule("InferenceObjective", "inferenceobjectives", name, spec)

    def rewrite(self, name: str, rules: Sequence[Json], pool: str = "pool") -> None:
        self._rule("InferenceModelRewrite", "inferencemodelrewrites", name, {"poolRef": {"name": pool}, "rules": rules})

    def delete_rule(self, resource: str, name: str) -> None:
        self.cluster.request("DELETE", f"{RULES}/namespaces/{self.name}/{resource}/{name}")

    def _rule(self, kind: str, resource: str, name: str, spec: Json) -> None:
        document = {
            "apiVersion": RULES.removeprefix("/apis/"),
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        self.cluster.apply(f"{RULES}/namespaces/{self.name}/{resource}", document)

    def slices(self, service: str, name: str, endpoints: Sequence[Json], ports: Sequence[Json], family: str) -> None:
        document = {
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": family,
            "endpoints": list(endpoints),
            "ports": list(ports),
        }
        self.cluster.apply(f"/apis/discovery.k8s.io/v1/namespaces/{self.name}/endpointslices", document)

    def account(self, name: str, rules: Sequence[Json]) -> str:
        """A service account that may do what `rules` say in this namespace; its token."""
        self.cluster.apply(f"{self.path}/serviceaccounts", {"metadata": {"name": name}})
        self.allow(name, rules)
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.name}],
        }
        self.cluster.apply(f"{self._rbac}/rolebindings", binding)
        return self.token(name)

    def allow(self, name: str, rules: Sequence[Json]) -> None:
        self.cluster.apply(f"{self._rbac}/roles", {"metadata": {"name": name}, "rules": list(rules)})

    def token(self, name: str) -> str:
        made = self.cluster.request("POST", f"{self.path}/serviceaccounts/{name}/token", {"spec": {}})
        token: str = made["status"]["token"]
        return token

    @property
    def _rbac(self) -> str:
        return f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.name}"


def waited(within_s: float = 60.0) -> Iterator[None]:
    """`for _ in waited(): if done: break` polls, and fails when it takes too long."""
    give_up_s = time.monotonic() + within_s
    while time.monotonic() < give_up_s:
        yield
        time.sleep(0.02)
    raise AssertionError(f"it did not happen within {within_s:g} s")
